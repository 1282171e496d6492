"""What tests share: models, traces, servers and clocks made for them."""
