"""GR00T: a vision-language model whose last rows are read by a diffusion transformer."""
