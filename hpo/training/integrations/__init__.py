"""Callbacks for other training libraries; each file imports its library, this one none."""
