"""The process of one vertex: it joins the reader, the function of the user and the writer.

This is the only package that knows the services of a vertex together; they meet in bounded channels here.
"""
