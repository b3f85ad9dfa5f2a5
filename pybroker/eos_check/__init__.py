"""`pybroker eos-check`: tests whether a pipeline, which may be any command, is exactly once.

The pipeline is a black box. It runs against a new broker, through a proxy that sees each command of
the wire protocol (`proxy`, `connection_trace`). A run without faults records the steps and the
output. Each further run crashes the pipeline or the broker at one or two steps, restarts it, waits
until the pipeline has caught up, and compares the topics with those of the run without faults.
"""
