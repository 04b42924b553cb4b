"""Engines: who starts agents on other machines, and whether what they start can work together."""
