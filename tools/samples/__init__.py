"""Samples of datasets: read by number, the same whoever reads them, and in processes of their own before they are due.

dataset_samples.py makes batches of a torch Dataset, a DataLoader or a list; sample_loader.py reads ahead.
"""
