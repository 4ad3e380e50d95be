"""Between text and token ids. Pure after loading; knows neither HTTP nor the core, and never loads transformers."""
