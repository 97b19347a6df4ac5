//! AMX where the processor has none: a handler of SIGILL that executes tile instructions on registers of its own.
//!
//! The kernels' machine code runs as it is; each of its tile instructions raises SIGILL, is decoded from the bytes at
//! the instruction pointer, executed on thread-local tiles, and stepped over. What the manual forbids (a
//! bad configuration, shapes that do not fit, operands that coincide) ends the process with the reason; any other illegal
//! instruction ends it as without this handler.
//!
//! Source: Intel's manual, volume 2: LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TILERELEASE, TDPBSSD, and section 2.10
//! for their exceptions. Only what the kernels use: no start row but 0, no other product.
#![allow(unreachable_pub, dead_code, reason = "shared by path, and each test binary uses a part")]

use std::arch::x86_64::__cpuid_count;
use std::cell::RefCell;
use std::sync::Once;

use waste_kernels::{CpuFeatures, Isa};

/// This machine with AMX: its own, or executed by a handler; as it is where neither can be.
pub fn with_amx(cpu: CpuFeatures) -> CpuFeatures {
    static ONCE: Once = Once::new();
    // A processor with tiles that may not be used executes some of their instructions and not others.
    if cpu.has(Isa::Amx) || has_own_tiles() {
        return cpu;
    }
    ONCE.call_once(install);
    // SAFETY: the handler executes every tile instruction of the kernels, on any thread.
    unsafe { cpu.assuming_amx() }
}

/// Whether the processor itself has tile instructions, usable or not.
pub fn has_own_tiles() -> bool {
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx >> 24 & 1 != 0
}

/// Tile instructions that this thread has had executed, and whether its tiles are configured now.
pub fn observed() -> (u64, bool) {
    MACHINE.with_borrow(|it| (it.executed, it.tiles.is_configured()))
}

// --- Instructions -------------------------------------------------------------------------------------------------

/// Where an address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Register(usize),
    /// The next instruction.
    Next,
    Zero,
}

/// A memory operand: base + displacement, and the index apart, which tiles take for a stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub base: Base,
    pub displacement: i32,
    pub index: Option<usize>,
    pub scale: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    LoadConfig(Memory),
    Release,
    Zero(usize),
    Load(usize, Memory),
    Store(Memory, usize),
    /// C += A · B of signed bytes.
    Product {
        c: usize,
        a: usize,
        b: usize,
    },
}

/// The tile instruction that `next` yields the bytes of.
pub fn decode(mut next: impl FnMut() -> u8) -> Option<Instruction> {
    // Three-byte VEX, map 0F38, W 0, L 0; registers' fourth bits and vvvv are inverted.
    if next() != 0xc4 {
        return None;
    }
    let (rxb, wvlp, opcode, modrm) = (next(), next(), next(), next());
    let high = |bit: u8| usize::from(rxb >> bit & 1 ^ 1) << 3;
    let (prefix, vvvv) = (wvlp & 3, usize::from(wvlp >> 3 & 15 ^ 15));
    if rxb & 31 != 2 || wvlp & 0x84 != 0 {
        return None;
    }
    let (mode, rm) = (modrm >> 6, usize::from(modrm & 7));
    let reg = usize::from(modrm >> 3 & 7) | high(7);
    let needs_sib = opcode == 0x4b;
    if mode != 3 {
        if needs_sib && rm != 4 {
            return None;
        }
        let memory = memory(mode, rm, high(6), high(5), &mut next);
        return match (opcode, prefix, vvvv, reg) {
            (0x49, 0, 0, 0) => Some(Instruction::LoadConfig(memory)),
            (0x4b, 3, 0, tile @ 0..8) => Some(Instruction::Load(tile, memory)),
            (0x4b, 2, 0, tile @ 0..8) => Some(Instruction::Store(memory, tile)),
            _ => None,
        };
    }
    match (opcode, prefix, vvvv, reg, rm | high(5)) {
        (0x49, 0, 0, 0, 0) => Some(Instruction::Release),
        (0x49, 3, 0, tile @ 0..8, 0) => Some(Instruction::Zero(tile)),
        (0x5e, 3, b @ 0..8, c @ 0..8, a @ 0..8) => Some(Instruction::Product { c, a, b }),
        _ => None,
    }
}

fn memory(mode: u8, rm: usize, high_x: usize, high_b: usize, next: &mut impl FnMut() -> u8) -> Memory {
    let mut res = Memory { base: Base::Register(rm | high_b), displacement: 0, index: None, scale: 0 };
    let mut low = rm;
    if rm == 4 {
        let sib = next();
        low = usize::from(sib & 7);
        res.base = Base::Register(low | high_b);
        let index = usize::from(sib >> 3 & 7) | high_x;
        (res.index, res.scale) = ((index != 4).then_some(index), u32::from(sib >> 6));
    }
    if mode == 0 && low == 5 {
        res.base = if rm == 4 { Base::Zero } else { Base::Next };
    }
    if mode == 1 {
        res.displacement = i32::from(next().cast_signed());
    } else if mode == 2 || (mode == 0 && low == 5) {
        res.displacement = i32::from_le_bytes([next(), next(), next(), next()]);
    }
    res
}

// --- Registers ----------------------------------------------------------------------------------------------------

/// What the manual forbids, and what these instructions of it do not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault(pub &'static str);

/// One tile register; `rows` 0 where it is not configured.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    row_bytes: usize,
    data: [[u8; 64]; 16],
}

/// The tile registers of a thread.
pub struct Tiles(Option<[Tile; 8]>);

/// The general registers in the order of their numbers, and the address of the next instruction.
pub struct General {
    pub registers: [u64; 16],
    pub next: u64,
}

impl Memory {
    fn start(&self, general: &General) -> u64 {
        let base = match self.base {
            Base::Register(number) => general.registers[number],
            Base::Next => general.next,
            Base::Zero => 0,
        };
        base.wrapping_add_signed(self.displacement.into())
    }

    fn stride(&self, general: &General) -> u64 {
        self.index.map_or(0, |number| general.registers[number] << self.scale)
    }
}

impl Tiles {
    pub const INITIAL: Self = Self(None);

    pub fn is_configured(&self) -> bool {
        self.0.is_some()
    }

    /// # Safety
    /// The instruction, executed by a processor with these registers, would read and write memory that is there.
    pub unsafe fn execute(&mut self, instruction: Instruction, general: &General) -> Result<(), Fault> {
        match instruction {
            Instruction::LoadConfig(memory) => {
                let at = memory.start(general).wrapping_add(memory.stride(general)) as *const [u8; 64];
                // SAFETY: the operand is 64 readable bytes.
                self.configure(&unsafe { at.read_unaligned() })?;
            }
            Instruction::Release => self.0 = None,
            Instruction::Zero(tile) => self.tile(tile)?.data = [[0; 64]; 16],
            Instruction::Load(tile, memory) => {
                let tile = self.tile(tile)?;
                tile.data = [[0; 64]; 16];
                for row in 0..tile.rows {
                    let at = memory.start(general).wrapping_add(row as u64 * memory.stride(general));
                    // SAFETY: every row of the operand is readable.
                    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, tile.row_bytes) };
                    tile.data[row][..tile.row_bytes].copy_from_slice(bytes);
                }
            }
            Instruction::Store(memory, tile) => {
                let tile = self.tile(tile)?;
                for row in 0..tile.rows {
                    let at = memory.start(general).wrapping_add(row as u64 * memory.stride(general));
                    // SAFETY: every row of the operand is writable.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, tile.row_bytes) };
                    bytes.copy_from_slice(&tile.data[row][..tile.row_bytes]);
                }
            }
            Instruction::Product { c, a, b } => self.product(c, a, b)?,
        }
        Ok(())
    }

    pub fn configure(&mut self, config: &[u8; 64]) -> Result<(), Fault> {
        match config[0] {
            0 => return Err(Fault("palette 0 is not executed here")),
            1 => {}
            _ => return Err(Fault("no such palette")),
        }
        if config[1] != 0 {
            return Err(Fault("a start row is not executed here"));
        }
        if [2..16, 32..48, 56..64].into_iter().any(|it| config[it].iter().any(|&byte| byte != 0)) {
            return Err(Fault("reserved bytes of the configuration are not zero"));
        }
        let mut tiles = [Tile { rows: 0, row_bytes: 0, data: [[0; 64]; 16] }; 8];
        for (i, tile) in tiles.iter_mut().enumerate() {
            tile.rows = config[48 + i].into();
            tile.row_bytes = u16::from_le_bytes([config[16 + 2 * i], config[17 + 2 * i]]).into();
            if tile.rows > 16 || tile.row_bytes > 64 {
                return Err(Fault("a tile is larger than the palette's"));
            }
            if (tile.rows == 0) != (tile.row_bytes == 0) {
                return Err(Fault("a tile has rows without bytes or bytes without rows"));
            }
        }
        self.0 = Some(tiles);
        Ok(())
    }

    fn tile(&mut self, number: usize) -> Result<&mut Tile, Fault> {
        let tiles = self.0.as_mut().ok_or(Fault("no tile is configured"))?;
        let tile = &mut tiles[number];
        if tile.rows == 0 { Err(Fault("the tile is not configured")) } else { Ok(tile) }
    }

    fn product(&mut self, c: usize, a: usize, b: usize) -> Result<(), Fault> {
        if c == a || a == b || b == c {
            return Err(Fault("operands of a product coincide"));
        }
        let (left, right, res) = (*self.tile(a)?, *self.tile(b)?, self.tile(c)?);
        if [left.row_bytes, right.row_bytes, res.row_bytes].iter().any(|it| it % 4 != 0) {
            return Err(Fault("a row is not whole quads"));
        }
        if res.rows != left.rows || res.row_bytes != right.row_bytes || left.row_bytes / 4 != right.rows {
            return Err(Fault("the shapes of a product do not fit"));
        }
        for (res, left) in res.data.iter_mut().zip(&left.data).take(left.rows) {
            for (left, right) in left.as_chunks::<4>().0.iter().zip(&right.data).take(right.rows) {
                for (res, right) in res.as_chunks_mut::<4>().0.iter_mut().zip(right.as_chunks::<4>().0) {
                    let mut sum = i32::from_le_bytes(*res);
                    for (left, right) in left.iter().zip(right) {
                        let product = i32::from(left.cast_signed()) * i32::from(right.cast_signed());
                        sum = sum.wrapping_add(product);
                    }
                    *res = sum.to_le_bytes();
                }
            }
        }
        Ok(())
    }
}

// --- The handler --------------------------------------------------------------------------------------------------

struct Machine {
    tiles: Tiles,
    executed: u64,
}

thread_local! {
    // No destructor and a constant start: a handler may use it at any time.
    static MACHINE: RefCell<Machine> = const { RefCell::new(Machine { tiles: Tiles::INITIAL, executed: 0 }) };
}

fn install() {
    // SAFETY: zero is a valid action: no flags, nothing blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_illegal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the action is whole, and its handler has the signature that SA_SIGINFO asks for.
    let res = unsafe { libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) };
    assert_eq!(res, 0, "a handler of SIGILL");
}

/// Numbers of the saved registers, in the order of the processor's own.
const ORDER: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

extern "C" fn on_illegal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the third argument is this thread's saved state, ours while the handler runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let saved = &mut context.uc_mcontext.gregs;
    let (start, mut length) = (saved[libc::REG_RIP as usize].cast_unsigned(), 0);
    let instruction = decode(|| {
        // SAFETY: an instruction's bytes are fetched one by one, none beyond its end.
        let byte = unsafe { *((start + length) as *const u8) };
        length += 1;
        byte
    });
    let Some(instruction) = instruction else {
        // SAFETY: the default action takes no handler. The instruction comes again and ends the process.
        unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
        return;
    };
    let next = start + length;
    let registers = ORDER.map(|it| saved[it as usize].cast_unsigned());
    let res = MACHINE.with_borrow_mut(|it| {
        it.executed += 1;
        // SAFETY: the program was about to execute just that.
        unsafe { it.tiles.execute(instruction, &General { registers, next }) }
    });
    if let Err(Fault(reason)) = res {
        for text in ["tile instruction: ", reason, "\n"] {
            // SAFETY: a slice's bytes.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        }
        std::process::abort();
    }
    saved[libc::REG_RIP as usize] = next.cast_signed();
}
