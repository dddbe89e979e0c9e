"""Pictures of studies, for files and notebooks: one description for PNG, SVG and HTML.

A picture is a Vega-Lite document. vl-convert draws it without a browser or a network, and brings
the scripts that make an HTML page of it interactive. Everything it shows comes from the client.
"""

from hpo.plots.kinds import KINDS, plot
from hpo.plots.picture import SUFFIXES, Picture

__all__ = ["KINDS", "SUFFIXES", "Picture", "plot"]
