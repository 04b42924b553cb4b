"""`CostClass`: the classes of operators whose FLOPs a machine computes at one rate.

Every sharding rule names the class of its operator; a cluster file gives a rate for each class, and the cost model
derives from the class what backward costs. OPAQUE is the class of operators without a written rule
of which torch does not tell more (see found_rule.py).
"""

CostClass = str

CONTRACTION, CONVOLUTION, ATTENTION, OPAQUE = "contraction", "convolution", "attention", "opaque"
LOCAL, POOLING, NORMALISATION, LOSS = "local", "pooling", "normalisation", "loss"
ELEMENTWISE, FUNCTION, REDUCTION = "elementwise", "function", "reduction"
EMBEDDING, VIEW, COPY, RANDOM = "embedding", "view", "copy", "random"

CLASSES: tuple[CostClass, ...] = (
    *(CONTRACTION, CONVOLUTION, LOCAL, ATTENTION, POOLING, NORMALISATION, LOSS, FUNCTION),
    *(ELEMENTWISE, REDUCTION, EMBEDDING, VIEW, COPY, RANDOM, OPAQUE),
)
