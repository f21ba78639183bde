"""Programs whose Python takes operators out of the compiled code: branches in loops, `try`, generators, callbacks, libraries, hooks.

With `is_steady = False`, a compiled call runs other operators than the program, or another one each time.
"""

from tests.strangers.program import Program, programs

TEXT = """
=== blocks in a loop
conv, blocks, head = nn.Conv2d(3, 32, 8, 8), nn.ModuleList(stack(1, 32) for _ in range(3)), nn.Linear(32, 10)
def model(images):
    x = conv(images).flatten(2).transpose(1, 2)
    x = x + torch.linalg.svd(x)[1].mean()
    for i, block in enumerate(blocks):
        if i == 0 and x.abs().mean() > 5: x = x * 0.5  #!
        x = block(x)
    return head(x.mean(1))
args = (torch.randn(2, 3, 32, 32),)
=== early exit
for layer in (down, up, down):
    y = layer(y).relu()
    if y.max() > 100: break  #!
y = up(y)
=== while on data
while y.norm() > 1: y = up(down(y)) * 0.1  #!
=== try around a branch
try:
    if y.sum() > 1e6: y = y * 2  #!
except ValueError: y = y + 1
=== finally
seen = []
def model(x):
    try: seen.append(up(x).sum().item())  #!
    finally: x = x.relu()
    return down(up(x))
=== an exit stack
with contextlib.ExitStack():
    if y.sum() > 1e6: y = y * 2  #!
=== own context manager
@contextlib.contextmanager
def timed(): yield
def model(x):
    with timed():
        x = up(x)
        if x.sum() > 1e6: x = x * 2  #!
    return down(x.relu())
=== generator with a branch
def parts(x):
    for _ in range(3):
        if x.sum() > 1e6: x = x * 3  #!
        yield up(x).sin()
model = lambda x: down(sum(parts(x)))
=== consumer of a generator
def parts(x):
    for scale in (1, 2, 3): yield up(x) * scale
def model(x):
    total = x
    for part in parts(x):
        if part.sum() > 1e6: part = part * 2  #!
        total = total + part
    return down(total)
=== generator expression
if any(bool(row.sum() > 1e6) for row in y[:3]): y = y.sin()  #!
=== callbacks
class Norm:
    seen = []
    def __call__(self, x): self.seen.append(float(x.norm()))  #!
callbacks, is_steady = [Norm(), Norm()], False
def model(x):
    x = up(x)
    for callback in callbacks: callback(x)  #!
    return down(x.relu())
=== a callback that is passed
def model(x, done):
    done(x := up(x))
    return down(x.relu())
args, seen, is_steady = (torch.randn(64, 256), lambda x: seen.append(x.sum().item())), [], False  #!
=== forward hook
seen, model, args, is_steady = [], stack(3, 64), (torch.randn(8, 64),), False
model[1].register_forward_hook(lambda module, args, out: seen.append(float(out.sum())))  #!
=== forward pre-hook
model, args = stack(3, 64), (torch.randn(8, 64),)
def check(module, args):
    if args[0].isnan().any(): raise ValueError("NaN")  #!
model[2].register_forward_pre_hook(check)
=== log of a value
log.debug("mean %.3f", y.mean().item())  #!
=== log in a loop
for layer in (down, up):
    y = layer(y).relu()
    log.warning("layer done")  #!
=== an experiment tracker
class Tracker:
    rows = []
    def log(self, row): self.rows.append(dict(row))  #!
tracker, is_steady = Tracker(), False
def model(x):
    x = up(x).relu()
    tracker.log({"mean": x.mean().item(), "max": x.max().item()})  #!
    return down(x)
=== a dataclass that checks itself
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    def __post_init__(self):
        if self.x.isnan().any(): raise ValueError("NaN")  #!
model = lambda x: down(Batch(up(x)).x.relu())
=== modules in modules
class Gate(nn.Module):
    def forward(self, x):
        for _ in range(2):
            if x.mean() > 5: x = x / 2  #!
        return x.tanh()
class Block(nn.Module):
    def __init__(self): super().__init__(); self.fc, self.gate = nn.Linear(32, 32), Gate()
    def forward(self, x): return x + self.gate(self.fc(x))
model, args = nn.Sequential(Block(), Block(), nn.Linear(32, 4)).eval(), (torch.randn(8, 32),)
=== recursion
def halve(x, depth):
    if depth == 0 or x.norm() < 1e-6: return x  #!
    return halve(up(x) * 0.5, depth - 1)
model = lambda x: down(halve(x, 3))
=== values in a list
is_steady = False
def model(x):
    x = up(x).relu()
    return down(x * sum([row.mean().item() for row in x[:4]]))  #!
=== NumPy in a loop
for _ in range(2):
    y = y + float(np.median(y.detach().numpy().tolist()))  #!
=== a function that stays in Python
@torch.compiler.disable
def post(x): return x.sort(-1).values.relu()
model = lambda x: down(post(up(x)))  #!
=== a property
class Scaled(nn.Linear):
    factor = property(lambda self: self.bias.mean().item())  #!
    def forward(self, x): return super().forward(x).relu() * self.factor
model, args = Scaled(32, 32).eval(), (torch.randn(8, 32),)
=== an assertion in a loop
for layer in (down, up):
    y = layer(y)
    if not bool((y < 1e9).all()): raise ValueError("too large")  #!
=== a deep copy
y = y + copy.deepcopy({"bias": y.mean(0)})["bias"]  #!
=== the clock
times = []
def model(x):
    times.append(time.perf_counter())  #!
    return down(up(x).relu())
=== dispatch by dictionary |
act = {"relu": torch.relu, "gelu": F.gelu}
model = lambda x, how="gelu": down(act[how](up(x)))
=== a configuration |
@dataclasses.dataclass(frozen=True)
class Config: depth: int = 3; scale: float = 0.5
config = Config()
def model(x):
    for _ in range(config.depth): x = up(x).relu() * config.scale
    return down(x)
=== a partial function |
model = functools.partial(lambda scale, x: down(up(x).relu()) * scale, 0.5)
=== keyword arguments |
model = lambda x, *, mask=None, **others: down(up(x) if mask is None else up(x).masked_fill(mask, 0))
"""

PROGRAMS: dict[str, Program] = {program.name: program for program in programs(TEXT, "calls")}
