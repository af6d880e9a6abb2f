"""Render a run's report for readers who are not engineers: the privacy card.

The card has two forms, a page and a Hugging Face model card. Both are functions of the
report only, which holds public values. No function here may read a run's other files.
Start reading at `page.py`.
"""
