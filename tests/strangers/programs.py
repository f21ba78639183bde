"""Programs as strangers write them: after public threads, with a planted cause, and healthy ones."""

from tests.strangers.program import Program, programs

# After reports of the first screen: misled, failed when followed, not answered.
ISSUE = """
=== size by int() | break
#+ pass_as_int: size = 7
def model(dst, x):
    n = int(dst.max().item()) + 1  #!
    #? pass_as_int: n = size
    return down(torch.cat([x.new_zeros(n, 256), up(x).relu()]))
args = torch.arange(64) % 7, torch.randn(64, 256)
=== index in a loop | break
def iou(a, b):
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    return (high - low).clamp(min=0).prod(-1)
def model(boxes, scores):
    order, total = scores.argsort(descending=True), boxes.sum()
    for _ in range(3):
        i = order[0]
        total = total + iou(boxes[i][None], boxes[order[1:]]).sum()  #!
        #? index_select: total = total + iou(boxes.index_select(0, i.reshape(1)), boxes[order[1:]]).sum()
        order = order[1:]
    return total
args = torch.rand(512, 4), torch.rand(512)
=== math.exp of a tensor | break
steps = [torch.tensor(0.1 * step) for step in range(8)]
def model(x, t):
    return down(up(x).relu() * math.exp(-steps[t]))  #!
    #? index_select: return down(up(x).relu() * math.exp(-torch.stack(steps).index_select(0, torch.tensor([t]))[0]))
    #? use_torch_math: return down(up(x).relu() * torch.exp(-steps[t]))
args = torch.randn(64, 256), 3
=== int argument as an index | recompile
is_other, heads, x = True, nn.ModuleList(nn.Linear(64, 64) for _ in range(6)), torch.randn(8, 64)
def model(x, i):
    y = x.sin()
    return heads[i](y).cos()  #!
calls = lambda: ((x, i) for i in (2, 3, 4, 5))
#? pass_as_tensor: calls = lambda: ((x, torch.tensor(i)) for i in (2, 3, 4, 5))
#? few_indexes: calls = lambda: ((x, i) for i in (2, 5, 2, 5))
=== dataclass outputs |
@dataclasses.dataclass
class Out:
    hidden: torch.Tensor
    logits: torch.Tensor
layers, args = stack(12, 16), (torch.randn(4, 16),)
model = lambda x: Out(x, layers(x))
=== an argument by name |
layers, args, kwargs = stack(12, 16), (torch.randn(4, 16),), {"scale": torch.tensor(2.0), "shift": torch.ones(16)}
def model(x, *, scale=None, **others):
    return layers(x) * scale + others["shift"]
=== a constant that changes |
layers, seen, is_random, args = stack(12, 16), torch.zeros(16), True, (torch.randn(4, 16),)
model = lambda x: layers(x) + seen.add_(x.mean(0))
=== print with item() | break
print(f"sum {y.sum().item():.3f}")  #!
#? print_outside,format_outside:
#? keep_in_tensor: print("sum", y.sum())
=== two dynamic dimensions | recompile
model = lambda x: (x @ x.transpose(1, 2)).softmax(-1)  #!
calls = lambda: shaped((2, 5, 16), (3, 6, 16), (4, 7, 16), (5, 9, 16))
#? mark_dynamic: calls = lambda: shaped((2, 5, 16), (3, 6, 16), (4, 7, 16), (5, 9, 16), dims=(0, 1))
#+ compile_dynamic: dynamic = True
=== one of two dimensions marked | recompile
model = lambda x: (x @ x.transpose(1, 2)).softmax(-1)  #!
calls = lambda: shaped((2, 5, 16), (3, 6, 16), (4, 7, 16), (5, 9, 16), dims=(0,))
#? mark_dynamic: calls = lambda: shaped((2, 5, 16), (3, 6, 16), (4, 7, 16), (5, 9, 16), dims=(0, 1))
#+ compile_dynamic: dynamic = True
=== gru | break
gru, args = nn.GRU(32, 32, batch_first=True), (torch.randn(4, 16, 32),)
model = lambda x: gru(x.sin())[0].cos()  #!
#+ call_layer_outside: before, after, is_compiled = (*(torch.compile(f, backend="ortlens") for f in (torch.sin, torch.cos)), False)
#+ call_layer_outside: model = lambda x: after(gru(before(x))[0])
=== experts by tolist() | break
router, experts = nn.Linear(32, 4), nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
def model(x):
    choice = router(x).argmax(-1)
    order = choice.argsort()
    counts = torch.bincount(choice, minlength=4).tolist()  #!
    #? compute_with_tensor: return sum(torch.where((choice == k)[:, None], expert(x), 0.0) for k, expert in enumerate(experts))
    parts = x[order].split(counts)
    y = torch.cat([expert(part) for expert, part in zip(experts, parts)])
    return torch.empty_like(y).index_copy(0, order, y)
args = (torch.randn(64, 32),)
=== weights replaced each call | weights_changed|unfrozen_weights
net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
def run():
    fast, x = torch.compile(net, backend="ortlens"), torch.randn(4, 512)
    #? weights_changed: fast, x = torch.compile(net, backend="ortlens", options={"freeze_weights": False}), torch.randn(4, 512)
    for step in range(12):
        net[0].weight = nn.Parameter(torch.full((512, 512), 0.1 * step))  #!
        y = fast(x)
    return y
=== a compiled optimiser |
net, is_random = nn.Linear(256, 256), True
optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
def run():
    fast = torch.compile(lambda: optimiser.step(), backend="ortlens")
    for _ in range(8):
        for weight in net.parameters(): weight.grad = torch.randn_like(weight)
        fast()
=== dropout that always trains | fallback
is_random, model = True, lambda x: down(F.dropout(up(x), 0.1))  #!
#? draw_outside,pass_training: is_random, model = True, lambda x: down(F.dropout(up(x), 0.1, training=False))
=== modules of one class | weights_changed|unfrozen_weights
layers = [nn.Linear(512, 512) for _ in range(6)]
def run():
    fast, x = [torch.compile(layer, backend="ortlens") for layer in layers], torch.randn(4, 512)
    #? weights_changed: fast, x = [torch.compile(nn.Sequential(*layers), backend="ortlens")], torch.randn(4, 512)
    for _ in range(4):
        for layer in fast: x = layer(x)
    return x
=== a cache that is empty at first | recompile
def model(x, cache):
    if not cache: return x.sin()  #!
    return x.sin() + cache[0]
is_other, calls = True, lambda: ((torch.ones(8, 64), [torch.ones(8, 64)] * count) for count in (0, 1, 1, 1))
#? same_count,one_value,same_truth: is_other, calls = True, lambda: ((torch.ones(8, 64), [torch.ones(8, 64)]) for _ in range(4))
=== a number behind a break | break
@torch.compiler.disable
def scale_of(step):
    return 0.5 + step.item()
def model(x, step):
    return x.sin() * scale_of(step)  #!
    #? call_outside: return x.sin() * step
calls = lambda: ((torch.ones(8, 64), torch.tensor(step)) for step in range(4))
#? call_outside: calls = lambda: ((torch.ones(8, 64), scale_of(torch.tensor(step))) for step in range(4))
=== a guard of PyTorch's own | recompile
is_other, model = True, lambda x: F.max_pool2d(x, 3, stride=2).flatten(1).softmax(-1)  #!
dynamic, calls = True, lambda: shaped(*((2, 3, size, size) for size in (16, 24, 4, 32)))
#? same_condition: dynamic, calls = True, lambda: shaped(*((2, 3, size, size) for size in (16, 24, 40, 32)))
=== memory of intermediates | memory_peak
model, is_other = lambda x: (x * 2 + 1).sigmoid().tanh().exp().sin().sum(), True  #!
args = (torch.randn(8, 1024, 1024),)
#? memory_peak: args = (torch.randn(1, 1024, 1024),)
=== guards of a large dict | heavy_guards|costly_guards|costly_entry|slower_call
class Net(nn.Module):
    def forward(self, x):  #!
        return x.sin() * sum(self.words.values())  #!
        #? heavy_guards,costly_guards,costly_entry,slower_call: return x.sin() * self.total
model, args = Net(), (torch.randn(64, 64),)
model.words = {f"word{i}": float(i) for i in range(2000)}
#? heavy_guards,costly_guards,costly_entry,slower_call: model.total = float(sum(range(2000)))
=== a constant that is folded |
grid = lambda: torch.linspace(0, 1, 256 * 256).reshape(256, 256)
model = lambda x: x + (grid() @ grid() @ grid() @ grid()).softmax(-1).sum()
=== generate | costly_entry|heavy_guards
from transformers import GPT2Config, GPT2LMHeadModel
net = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, eos_token_id=None, bos_token_id=None)).eval()
without = None
#? heavy_guards,costly_entry: without = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
if without: net.forward, is_compiled = torch.compile(net.forward, backend="ortlens", options=without), False
model, args, kwargs = net.generate, (torch.randint(0, 100, (1, 8)),), {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
=== a whole training step | break
net = stack(3, 64)
optimiser, grad = torch.optim.SGD(net.parameters(), lr=0.0), True
def model(x, y):
    optimiser.zero_grad()
    loss = F.mse_loss(net(x), y)
    #? compute_gradients_outside,compile_forward_alone: loss = fast(x, y)
    loss.backward()  #!
    optimiser.step()  #!
    return loss.detach()
args = torch.randn(32, 64), torch.randn(32, 64)
#+ compute_gradients_outside,compile_forward_alone: forward, is_compiled = lambda x, y: F.mse_loss(net(x), y), False
#+ compute_gradients_outside,compile_forward_alone: fast = torch.compile(forward, backend="ortlens")
"""

CAUSES = """
=== item() in a training loop | break
def model(x):
    loss = up(x).square().mean()
    running = 0.9 * loss.item()  #!
    #? keep_in_tensor: running = 0.9 * loss.detach()
    return loss * running
def run():
    fast = torch.compile(model, backend="ortlens")
    with torch.enable_grad():
        for _ in range(5): fast(torch.ones(64, 256)).backward()
=== a branch on data | break
if y.sum() > 0:  #!
#? choose_with_where: y = torch.where(y.sum() > 0, y.exp(), y.cos())
    y = y.exp()
#? choose_with_where:
else:
#? choose_with_where:
    y = y.cos()
#? choose_with_where:
=== numpy in forward | break
y = y * float(np.interp(y.numpy().mean(), [-1, 1], [0, 2]))  #!
#? use_torch_function: y = y * (y.mean() + 1)
=== logging in forward | break
log.info("sum %s", y.sum())  #!
#? log_outside:
=== batch sizes | recompile
model = lambda x: x.sin().softmax(-1)  #!
calls = lambda: shaped((4, 32), (6, 32), (8, 32), (12, 32))
#? mark_dynamic: calls = lambda: shaped((4, 32), (6, 32), (8, 32), (12, 32), dims=(0,))
#+ compile_dynamic: dynamic = True
=== sequence lengths | recompile
net = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0).eval()
model = lambda x: net(x).mean(1)  #!
calls = lambda: shaped((2, 5, 32), (2, 9, 32), (2, 17, 32))
#? mark_dynamic: calls = lambda: shaped((2, 5, 32), (2, 9, 32), (2, 17, 32), dims=(1,))
#+ compile_dynamic: dynamic = True
=== lists of other lengths | recompile
def model(x, parts):
    #+ same_count: parts = [parts.sum(0)]
    for part in parts:  #!
        x = x + part
    return x.sin()
#+ same_count: dynamic = True
calls = lambda: ((torch.ones(8, 32), [torch.ones(8, 32)] * count) for count in (2, 3, 4))
#? same_count: calls = lambda: ((torch.ones(8, 32), torch.ones(count, 8, 32)) for count in (2, 3, 4))
=== a global flag | recompile
MODE, is_other = "sine", True
def model(x):
    y = x * 2
    return y.sin() if MODE == "sine" else y.cos()  #!
def calls():
    global MODE
    x = torch.randn(8, 32)
    for MODE in ("sine", "cosine", "cosine"):
    #? one_value,keep_value: for MODE in ("sine", "sine", "sine"):
        yield (x,)
=== an operator without a kernel | fallback|nothing_runs|slower
layers, is_other = nn.ModuleList(nn.Linear(64, 64) for _ in range(4)), True
def model(x):
    for layer in layers:
        x = torch.special.bessel_j0(layer(x))  #!
        #? no_converter: x = 1 - layer(x).square() / 4
    return x
args = (torch.randn(64, 64),)
def by_other_means():
    x = torch.randn(64, 64)
    return 4 * in_turns(lambda: torch.special.bessel_j0(x))[0]
=== float64 by accident | float64_nodes
scale, is_other = torch.from_numpy(np.linspace(0, 1, 512)), True
#? float64_nodes: scale, is_other = torch.from_numpy(np.linspace(0, 1, 512)).float(), True
model, args = lambda x: torch.erf(x * scale).sin().exp(), (torch.randn(256, 512),)  #!
=== int8 by hand | fallback|slower|nothing_runs
weight = torch.randint(-127, 127, (512, 512), dtype=torch.int8)
def model(x):
    q = (x * 16).round().clamp(-127, 127).to(torch.int8)
    return torch._int_mm(q, weight).float() / 256  #!
args = (torch.randn(32, 512),)
=== casts back and forth | fallback|slower|nothing_runs
layers, is_other = nn.ModuleList(nn.Linear(256, 256, dtype=torch.bfloat16) for _ in range(4)), True
def model(x):
    for layer in layers:
        x = layer(x.to(torch.bfloat16)).float().relu()  #!
    return x
args = (torch.randn(32, 256),)
=== inputs in another layout | layout_copy
weight = torch.randn(64, 64)
model = lambda x: (x @ weight).relu()  #!
args = (torch.randn(256, 1024, 128)[:, ::16, ::2],)
#+ layout_copy: args = (args[0].contiguous(),)
=== many tiny graphs | break
class Step(nn.Linear):
    def forward(self, x):
        y = super().forward(x).relu()
        torch._dynamo.graph_break()  #!
        #? delete_graph_break:
        return y + 1
model, args = nn.Sequential(*[Step(16, 16) for _ in range(6)]).eval(), (torch.randn(4, 16),)
"""

OWN = """
=== sizes that follow from data | break
kept = y[y > 0]  #!
#? mask_with_where: kept = torch.where(y > 0, y, 0.0)
y = y + kept.square().sum()
=== gradients that nobody asked for | training_forward
model, grad = stack(4, 256), True
#+ training_forward: grad = False
=== autocast inside | fallback|nothing_runs
net, tolerance = stack(2, 256), 0.05
def model(x):
    with torch.autocast("cpu", torch.bfloat16): return net(x).float()  #!
=== deepcopy in the call | break
kept = copy.deepcopy(y)  #!
#? clone_tensors: kept = y.clone()
y = y + kept
=== dropout of a model in training | fallback
model, is_random = nn.Sequential(up, nn.Dropout(0.1), down), True
#+ draw_outside: model.eval()
=== an embedding bag |
table = nn.EmbeddingBag(1000, 256, mode="max")
model = lambda ids, offsets: down(table(ids, offsets)).softmax(-1)
args = torch.randint(0, 1000, (512,)), torch.arange(0, 512, 8)
=== a clock in forward | break
began = time.perf_counter()  #!
#? read_clock_around:
y = y.softmax(-1)
took = time.perf_counter() - began  #!
#? read_clock_around:
=== a break in a loop | break
def rescale(y):
    return y / max(1.0, y.norm().item())  #!
    #? keep_in_tensor,choose_with_where: return y / y.norm().clamp(min=1.0)
layers = stack(4, 256)
def model(x):
    for layer in layers: x = rescale(layer(x))
    return x
=== a transposed layout | copying_kernels|slower_call|slower
pool, norms, is_profiled = nn.AvgPool1d(3, stride=1, padding=1), nn.ModuleList(nn.LayerNorm(128) for _ in range(4)), True
def model(x):
    for norm in norms: x = norm(pool(x.transpose(1, 2)).transpose(1, 2))  #!
    return x
args = (torch.randn(2, 1024, 128),)
=== weights reloaded in the call | break|weights_changed|unfrozen_weights
net = stack(4, 256)
fresh = {name: value.clone() for name, value in net.state_dict().items()}
reload = torch.compiler.disable(lambda: net.load_state_dict(fresh))
def model(x):
    reload()  #!
    #? call_outside:
    return net(x)
=== a huge output | large_outputs
layer, is_other, args = nn.Linear(64, 64), True, (torch.randn(512, 64),)
def model(x):
    x = layer(x)
    return x, x[:, None, :] * x[None, :, :]  #!
    #? large_outputs: return x, (x[:, None, :] * x[None, :, :]).sum(-1)
=== a float that changes | recompile
model = lambda x, rate: x.sin() * rate  #!
calls = lambda: ((torch.ones(8, 32), rate) for rate in (0.1, 0.2, 0.3))
#? pass_as_tensor: calls = lambda: ((torch.ones(8, 32), torch.tensor(rate)) for rate in (0.1, 0.2, 0.3))
=== a counter on the module | recompile
class Net(nn.Linear):
    steps = 0
    def forward(self, x):
        self.steps = self.steps + 1  #!
        return super().forward(x) / self.steps  #!
is_random, model = True, Net(64, 64)
#+ number_in_buffer: model.steps = torch.tensor(0.0)
calls = lambda: ((torch.ones(8, 64),) for _ in range(5))
=== a table of a submodule | costly_guards
class Scale(nn.Module):
    def forward(self, x):
        return x * sum(self.scales.values())  #!
        #? costly_guards: return x * self.scale
model, args = nn.Sequential(nn.Linear(64, 64), Scale()), (torch.randn(64, 64),)
model[1].scales = {f"layer{i}": 0.5 ** i for i in range(2000)}
#? costly_guards: model[1].scale = 2.0
=== a scripted piece | break
piece = torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.GELU()))
#? use_plain_module: piece = nn.Sequential(nn.Linear(64, 64), nn.GELU())
is_other, args, head = True, (torch.randn(16, 64),), nn.Linear(64, 64)
model = lambda x: head(piece(x.sin()))  #!
=== lengths as a list | recompile
def model(x, lengths):
    keep = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]  #!
    #? pass_as_tensor: keep = torch.arange(x.shape[1]) < lengths[:, None]
    return (x * keep).softmax(-1)
calls = lambda: ((torch.ones(2, 16), [5 + step, 9 - step]) for step in range(4))
#? pass_as_tensor: calls = lambda: ((torch.ones(2, 16), torch.tensor([5 + step, 9 - step])) for step in range(4))
=== a cache that grows | recompile
query = nn.Linear(32, 32)
def model(x, cache):  #!
    cache = torch.cat([cache, query(x)])  #!
    return (x @ cache.T).softmax(-1) @ cache, cache
calls = lambda: ((torch.ones(1, 32), torch.ones(length, 32)) for length in (4, 5, 6, 7))
#+ mark_dynamic: caches = [torch.ones(length, 32) for length in (4, 5, 6, 7)]
#+ mark_dynamic: for cache in caches: torch._dynamo.mark_dynamic(cache, 0)
#+ mark_dynamic: calls = lambda: ((torch.ones(1, 32), cache) for cache in caches)
#+ compile_dynamic: dynamic = True
=== a mode as text | recompile
is_other = True
def model(x, mode):
    return {"mean": x.mean, "sum": x.sum, "max": x.amax}[mode](-1).sin()  #!
calls = lambda: ((torch.ones(8, 64), mode) for mode in ("mean", "sum", "max"))
#? one_value: calls = lambda: ((torch.ones(8, 64), "mean") for _ in range(3))
=== a scale that changes | recompile
is_other, model = True, lambda x, scale: F.interpolate(x, scale_factor=scale, mode="bilinear").relu()  #!
calls = lambda: ((torch.ones(1, 3, 16, 16), scale) for scale in (1.5, 2.0, 2.5, 3.0))
#? one_value: calls = lambda: ((torch.ones(1, 3, 16, 16), scale) for scale in (1.5, 2.0, 1.5, 2.0))
#? pass_as_tensor: calls = lambda: ((torch.ones(1, 3, 16, 16), torch.tensor(scale)) for scale in (1.5, 2.0, 2.5, 3.0))
=== a history that grows | recompile
history = []
def model(x):
    history.append(0.5)  #!
    #? set_before:
    return x * sum(history)
is_random, calls = True, lambda: ((torch.ones(8, 64),) for _ in range(4))
#+ set_before: history.extend([0.5, 0.5])
"""

HEALTHY = """
=== bert |
from transformers import BertConfig, BertModel
net = BertModel(BertConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=2, intermediate_size=256, vocab_size=500)).eval()
model, args = lambda ids: net(ids).last_hidden_state, (torch.randint(0, 500, (2, 64)),)
=== resnet |
from transformers import ResNetConfig, ResNetModel
net = ResNetModel(ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")).eval()
model, args = lambda x: net(x).pooler_output, (torch.randn(2, 3, 64, 64),)
=== mlp |
model, args = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).eval(), (torch.randn(64, 512),)
=== conv net |
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU()).eval()
args = (torch.randn(4, 3, 64, 64),)
=== encoder layer |
model, args = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True).eval(), (torch.randn(4, 64, 128),)
=== gpt2 |
from transformers import GPT2Config, GPT2LMHeadModel
net = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=500, n_positions=128)).eval()
model, args = lambda ids: net(ids, use_cache=False).logits, (torch.randint(0, 500, (2, 64)),)
=== a small call |
model, args = lambda x: torch.tanh(x.sin() * 2 + 1).softmax(-1), (torch.randn(96, 96),)
=== dictionary outputs |
def model(x):
    y = up(x["input"]).relu()
    return {"hidden": y, "score": y.mean(-1)}
args = ({"input": torch.randn(128, 256)},)
"""

PROGRAMS = (*programs(ISSUE, "issue"), *programs(CAUSES, "cause"), *programs(OWN, "own"), *programs(HEALTHY, "healthy"))
BY_NAME: dict[str, Program] = {program.name: program for program in PROGRAMS}
