"""Recurrent nets with their time steps as operators: LSTM, GRU and RNN, whose hidden units can then be cut.

The nouns: `RecurrentCall` (one call of torch's fused operator), its unrolled form (a few operators for each time step).
"""
