"""`pybroker eos-check`: tests whether a pipeline is exactly once: any command, as a black box.

The command is run against a broker of its own, behind a proxy that sees each command of the wire
protocol (`proxy`, `connection_trace`). A run without faults records the steps and the output. Then
each further run crashes the pipeline or the broker at one step, or at two, starts it again, waits
until it has caught up, and compares the topics with the run without faults.
"""
