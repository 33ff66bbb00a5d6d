"""Selectors inside other libraries: `langchain`, `llama_index`, `haystack`, and ways of use that need none.

Each module imports its library; nothing is imported here.
"""
