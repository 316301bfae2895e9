"""The dashboard: tuned against default, for people who look rather than read. Served by `fuseplan dashboard`, or exported.

It only reads: files are opened with SQLite's ``mode=ro``. One renderer makes the served pages and the exported file. All SQL is in
`queries/`, with bound values. Starlette, uvicorn, Jinja2 and Plotly are the extra `dashboard` and imported nowhere else.

How to add a page
-----------------

1. `queries/NAME.py`: functions ``f(connection, …) -> frozen dataclass`` with the SQL. Text from a file is hostile until the
   template has escaped it, and numbers may be NULL, or anything: read them with `queries.values.number` and `count`.
2. `pages/NAME.py`: a frozen dataclass that holds all the template shows, and one constant::

       PAGE = Page("run", "Run", "run.html", load, params=(Param("key", r"[0-9a-f]{32}"),), nav="Runs")

       def load(reader: Reader, ask: Ask) -> RunPage:
           return RunPage(reader.read(lambda connection: queries.run(connection, ask["key"])))

   `reader.read` is one transaction on the database that the page is about; ``reader.others`` holds the other databases by name.
   `ask` holds the query string, checked: what no `Param` allows is refused with 400. ``ask.filters`` are those in the bar.
   Raise `NotThere("no such program")` for a 404. The page is at ``/run``; its name is its path.
3. `templates/NAME.html`: the inside of ``<main>``, beginning with one ``<h1>``. It sees ``page`` (the dataclass), ``ask``, and

   - ``url("program", key=…)``: the link to another page, with the filters of this one; "" where an exported file has no
     such page, so write ``{{ link(name, url("program", key=key)) }}``, which then is plain text;
   - ``uid("x")``: an id that is unique in an exported file, which holds all pages at once;
   - ``chart(figure)``: a Plotly chart (`charts.Figure`), drawn after the first paint, with its table for who cannot see it;
   - the filters ``us`` (a time), ``times`` (a ratio), ``percent``, ``count``, ``bytes``, ``seconds``, ``when``, ``sizes``, each of which writes "–" for None.

   The Content-Security-Policy allows no inline script, no inline style and no ``style=``: bars are SVG with ``width="37%"``
   (``bar()``), colours are classes. A drawing of `fuseplan.drawing` is shown with ``drawing(svg, "what it shows")``.
   An element with an id and ``data-refresh="3"`` is fetched anew every three seconds while the page is served.
4. List it in `pages/__init__.py`. To be in an exported file in more than its plain form, give the Page ``exports``: a function
   from a reader to the parameters of each copy.
5. A test in tests/browser, with the fixtures of its conftest: `served(database)` is a real server, `open_page` a real Chromium.
"""
