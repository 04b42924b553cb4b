"""The command line, pictures and benchmarks; the only place that wires objects together."""
