"""What a finished run found, in the forms other programs read. A form is a function run, output -> nothing.

Originals are never moved or changed, nothing that exists is overwritten, and an export is whole or absent.
"""

from promptcal.exporters.forms import FORMS, Form, export_run

__all__ = ["FORMS", "Form", "export_run"]
