"""From what PyTorch gives (Dynamo's graph, AOTAutograd's graphs) to the Graph, and back to FX.

The folders in the order of the flow: `dynamo` (keys, inputs, symbols), `fx` (to and from the Graph), `trace` (a program as
a document), `nvfuser_script` (a program out of nvFuser's own scripts).
"""
