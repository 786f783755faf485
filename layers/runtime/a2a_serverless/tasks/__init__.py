"""The rules of tasks, turns and attempts: pure code that touches neither AWS nor HTTP."""
