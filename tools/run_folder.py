"""The names of the files and folders in a run folder."""

CONFIG = "config.json"  # the options that the run was started with
PLACEMENT = "placement.json"  # how the model was cut
INITIAL = "initial.safetensors"  # the weights that training began with
LOGS = "logs"  # folder; what each process printed
CHECKPOINT = "checkpoint"  # folder; the checkpoint of the end
WEIGHTS = "model.safetensors"  # the trained model as a plain state_dict
TRACE = "trace.json"  # some recorded steps, for ui.perfetto.dev
RESULT = "result.json"
REPORT = "report.html"
