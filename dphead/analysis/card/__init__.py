"""Render a run's report for readers who are not engineers: the privacy card.

The card has three forms: a page, a Hugging Face model card, and an annex for a data
protection impact assessment. All depend only on the report and about.toml, which hold
public values. No renderer may read other files of a run. Start reading at `page.py`.
"""
