"""Evaluation: tasks, fine-tuning protocols, baselines, scoring, probes and the files for the GLUE server.

The path of an evaluation: ``Task`` -> ``TaskEvaluation`` -> ``FinetuningJob`` -> ``FinetuningRun`` -> ``TaskResult``.
"""
