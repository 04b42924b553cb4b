"""The classes of operators in words, for all that is said of what was measured or predicted of them."""

from ...partition.operators.sharding import cost_class

CLASS_NAMES = {
    cost_class.CONTRACTION: "matrix products",
    cost_class.CONVOLUTION: "convolutions",
    cost_class.LOCAL: "locally connected layers",
    cost_class.ATTENTION: "attention",
    cost_class.POOLING: "pooling",
    cost_class.NORMALISATION: "norms and softmaxes",
    cost_class.LOSS: "the loss",
    cost_class.FUNCTION: "functions such as gelu and tanh",
    cost_class.ELEMENTWISE: "elementwise operators",
    cost_class.REDUCTION: "sums",
    cost_class.EMBEDDING: "embeddings",
    cost_class.VIEW: "views",
    cost_class.COPY: "copies",
    cost_class.RANDOM: "random numbers",
    cost_class.OPAQUE: "what stays whole",
}
