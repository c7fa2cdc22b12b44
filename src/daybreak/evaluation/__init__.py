"""Tasks, protocols and the loop that fine-tunes.

To read: tasks, kind, sequences, protocol, finetune, cells, fanout, pools, plans, measure. Beside that way: conventions
and anchors (averages), resampling (is B better), submission, and frozen with what is probed without fine-tuning.
"""
