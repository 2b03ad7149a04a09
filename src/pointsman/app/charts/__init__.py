"""Charts and the style of reports: SVG and CSS in the page, no scripts, nothing loaded from elsewhere."""
