"""Attacks as bounded programs, with an honest pair beside them that measures what others feel.

``python -m tests.attacks [NAMES]``; ``make attacks`` runs all. Each attack has a mediator of its
own (``poste serve`` with default settings), a process of its own and addresses of its own; how loud
it is stands beside its name, and so do the bounds that its measurement may not break.
"""
