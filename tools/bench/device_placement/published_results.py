"""Results that others have published, by file name and number of machines: printed beside ours, never used to get them.

dnn-partitioning: Tarnawski et al., NeurIPS 2020, for 6 accelerators and 1 CPU. PipeDream: its optimizer at 1.25e9
bytes/s, transfers counted (--activation_compression_ratio 1), with one machine for each stage (--straight_pipeline) and
with replicated stages. METIS: best of 5 seeds.
"""

PUBLISHED: dict[tuple[str, int], dict[str, float]] = {
    ("bert24_inference.json", 6): {
        "contiguous": 17.7899, "linear": 17.7899, "local search": 17.7776, "expert": 20.084,
    },
    ("gnmt_inference.json", 6): {
        "contiguous": 32.9107, "linear": 33.0311, "local search": 31.7827, "expert": 46.2085,
    },
    ("inceptionv3_inference.json", 6): {"linear": 60.417, "expert": 102.482},
    ("resnet50_inference.json", 6): {"contiguous": 33.7747, "linear": 39.3981, "expert": 43.9183},
    ("alexnet.graph.txt", 1): {"one each": 0.0853},
    ("alexnet.graph.txt", 2): {"one each": 0.0532},
    ("alexnet.graph.txt", 4): {"one each": 0.0532, "replicated": 0.032461},
    ("alexnet.graph.txt", 8): {"replicated": 0.015099},
    ("alexnet.graph.txt", 16): {"replicated": 0.015099},
    ("resnet50.graph.txt", 1): {"one each": 0.4434},
    ("resnet50.graph.txt", 2): {"one each": 0.2851},
    ("resnet50.graph.txt", 4): {"one each": 0.2581, "replicated": 0.151993},
    ("resnet50.graph.txt", 8): {"replicated": 0.082208},
    ("resnet50.graph.txt", 16): {"replicated": 0.043848},
    ("gnmt.graph.txt", 1): {"one each": 0.0894},
    ("gnmt.graph.txt", 2): {"one each": 0.0459},
    ("gnmt.graph.txt", 4): {"one each": 0.0259, "replicated": 0.025868},
    ("gnmt.graph.txt", 8): {"replicated": 0.019285},
    ("gnmt.graph.txt", 16): {"replicated": 0.017125},
    ("4elt.graph", 2): {"METIS": 139},
    ("4elt.graph", 4): {"METIS": 354},
    ("4elt.graph", 8): {"METIS": 594},
    ("4elt.graph", 16): {"METIS": 1016},
}  # fmt: skip


def find_published(name: str, machines: int) -> dict[str, float]:
    """Return the published objectives for a file of this name, by method; empty if there are none."""
    return PUBLISHED.get((name, machines), {})
