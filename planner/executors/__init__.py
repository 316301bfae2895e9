def executors(): return {}
