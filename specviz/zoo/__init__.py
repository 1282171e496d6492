"""How the bundled models were made: corpus -> tokenizer -> tokens -> training -> Hugging Face folder -> measured card.

Run it as `python -m specviz.zoo`; nothing in the running application imports this package."""
