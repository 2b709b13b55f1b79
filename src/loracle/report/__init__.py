"""Results as files: Markdown, HTML, SVG."""
