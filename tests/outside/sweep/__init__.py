"""A sweep over the registries of torchvision, timm and transformers: what cutset captures, plans and cuts exactly.

`python -m sweep` runs it. The rule by which models are chosen: selection.py.
"""
