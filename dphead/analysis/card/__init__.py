"""The privacy card: a run's report for readers who are not engineers, as a page, a
Hugging Face model card, and an entry of OpenDP's registry of deployments.

Everything here is a function of the report alone, which holds public values; nothing
may read a run's other files. Start reading at `page.py`.
"""
