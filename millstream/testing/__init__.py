"""Parts that tests of Millstream, and of pipelines built with it, are made of. Nothing here is used at run time."""
