"""Correctors (arXiv 2509.23224): a small head that corrects a flow policy's actions by the newest
image. ``examples``: what one learns from; ``training``; ``run``: all of it, and the folder."""
