"""PyTorch's own OpInfo cases through a torch.compile backend, against eager: `scripts/opinfo` and the sample that CI runs.

cases     which cases there are          inputs   fresh copies of a sample's tensors
outcome   what one run of a case did     compare  two outcomes: the same, or what differs
verdict   one case -> one Row            worker   a process that answers groups of cases
pool      drives workers, outlives them  summary  rows -> result file and table
"""
