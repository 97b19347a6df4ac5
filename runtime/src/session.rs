//! A session: a loaded plan, its memory, its threads, and the accepted history of each row.
//!
//! Invariants
//! - all memory is allocated in [`Session::open`], that of a recording in [`Session::start_trace`]; a step allocates nothing;
//! - a step is a transaction: the history of a row grows only after the whole step succeeded and its logits are finite.
//!   A failed or cancelled step leaves the accepted history as it was, and a retry overwrites the rejected positions;
//! - a row's recurrent states have two halves: a step reads the accepted one and writes the other, and accepting it flips them;
//! - the bits of the logits depend on the tokens of their row alone.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use waste_kernels::KernelTable;
use waste_plan::schema::{Plan, PortName, Program, StateKind};

use crate::arena::{Call, Spaces, ThreadScratch};
use crate::error::RuntimeError;
use crate::exec::{Exec, missing_kernels};
use crate::experts::ExpertError;
use crate::loaded::LoadedPlan;
use crate::look::{After, Onlooker, StepView, look};
use crate::needs::{needed_bytes_with, position_bytes, recurrent_bytes, weight_bytes};
use crate::options::{Counters, SessionOptions, Token};
use crate::poison::{Deaths, Poison};
use crate::profile::Profile;
use crate::stream::ExpertSource;
use crate::sys::thread_allocations;
use crate::team::{Member, Team};
use crate::trace::{Slice, Trace};
use crate::walk::{claim_tiles, next_step};

/// A loaded plan with memory and threads.
#[derive(Debug)]
pub struct Session {
    loaded: LoadedPlan,
    plan: Arc<Plan>,
    spaces: Spaces,
    table: KernelTable,
    team: Team,
    scratch: Vec<Mutex<ThreadScratch>>,
    /// One claim counter a step, per program.
    claims: Vec<Vec<AtomicUsize>>,
    /// Accepted tokens of each row.
    lens: Vec<u32>,
    /// The accepted half of each row's recurrent states.
    halves: Vec<usize>,
    is_recurrent: bool,
    /// Bytes of packed weights that a call of each program reads, tables excepted.
    weight_bytes: Vec<u64>,
    /// Bytes of one position of one row in all caches.
    position_bytes: u64,
    /// Bytes of recurrent states that a step reads and writes for each of its rows.
    recurrent_bytes: u64,
    last: Call,
    experts: Option<ExpertSource>,
    cancel: Arc<AtomicBool>,
    is_verified: bool,
    check_finite: bool,
    profile: Option<Profile>,
    trace: Option<Trace>,
    poison: Option<Poison>,
    counters: Counters,
}

impl Session {
    /// Allocates memory, starts threads, resolves every step.
    ///
    /// # Errors
    /// If the plan needs more than `max_mem`, a kernel is missing, or the system refuses memory or threads.
    pub fn open(loaded: &LoadedPlan, options: &SessionOptions) -> Result<Self, RuntimeError> {
        let plan = loaded.shared_plan();
        let needs = needed_bytes_with(&plan, options.threads, options.experts.slots);
        if let Some(limit) = options.max_mem.filter(|it| *it < needs) {
            return Err(RuntimeError::Memory { needs, limit });
        }
        if !loaded.has_weights() {
            return Err(RuntimeError::Batch("the plan was opened without its weights".into()));
        }
        if let Some((weight, x)) = missing_kernels(&plan).first() {
            let name = &plan.weights[*weight].name;
            return Err(RuntimeError::Batch(format!(
                "weight '{name}' has no kernel for {} activations",
                x.name()
            )));
        }
        let claims =
            plan.programs.iter().map(|it| it.steps.iter().map(|_| AtomicUsize::new(0)).collect()).collect();
        let scratch = (0..options.threads.max(1))
            .map(|_| ThreadScratch::new(plan.memory.thread).map(Mutex::new))
            .collect::<Result<_, _>>()?;
        let profile = options.profile.then(|| Profile::new(&plan));
        Ok(Self {
            spaces: Spaces::new(&plan, loaded.weights())?,
            table: KernelTable::new(options.cpu),
            team: Team::new(options.threads.max(1), &options.cpus)?,
            scratch,
            claims,
            lens: vec![0; plan.options.batch as usize],
            halves: vec![0; plan.options.batch as usize],
            is_recurrent: plan.states.iter().any(|it| it.kind == StateKind::Recurrent),
            weight_bytes: plan.programs.iter().map(|it| weight_bytes(&plan, it)).collect(),
            position_bytes: plan.states.iter().map(position_bytes).sum(),
            recurrent_bytes: plan.states.iter().map(recurrent_bytes).sum(),
            last: Call { tokens: 0, want: 0 },
            experts: ExpertSource::open(loaded, &options.experts)?,
            cancel: Arc::new(AtomicBool::new(false)),
            is_verified: !options.verify,
            check_finite: options.check_finite,
            profile,
            trace: None,
            poison: None,
            counters: Counters::default(),
            plan,
            loaded: loaded.clone(),
        })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The kernels in use.
    #[must_use]
    pub fn kernels(&self) -> &KernelTable {
        &self.table
    }

    /// Threads of the team.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.team.size()
    }

    /// Set to true from anywhere, it ends the running step with [`RuntimeError::Cancelled`] within a tile's time.
    #[must_use]
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Accepted tokens of `row`.
    #[must_use]
    pub fn len(&self, row: u32) -> u32 {
        self.lens[row as usize]
    }

    /// Whether `row` has no history.
    #[must_use]
    pub fn is_empty(&self, row: u32) -> bool {
        self.len(row) == 0
    }

    /// Forgets the history of `row`.
    pub fn clear(&mut self, row: u32) {
        self.lens[row as usize] = 0;
    }

    /// Forgets all but the first `len` tokens of `row`.
    ///
    /// # Errors
    /// [`RuntimeError::Batch`] if the model is recurrent and a part of the history would stay: its state is not kept.
    pub fn truncate(&mut self, row: u32, len: u32) -> Result<(), RuntimeError> {
        let it = &mut self.lens[row as usize];
        if self.is_recurrent && len > 0 && len < *it {
            return Err(RuntimeError::Batch(format!(
                "a recurrent state cannot go back from {it} to {len} tokens, only to 0"
            )));
        }
        *it = (*it).min(len);
        Ok(())
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What the expert cache counted, if there is one.
    #[must_use]
    pub fn expert_counters(&self) -> Option<crate::experts::Counters> {
        self.experts.as_ref().map(ExpertSource::counters)
    }

    /// The experts of files, if the plan has any.
    pub(crate) const fn expert_source(&self) -> Option<&ExpertSource> {
        self.experts.as_ref()
    }

    /// Measured time of each step, if it was asked for.
    #[must_use]
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// Records from now on what each thread does, at most `most` slices of each: see [`Trace`].
    pub fn start_trace(&mut self, most: usize) {
        self.trace = Some(Trace::new(self.threads(), most));
    }

    /// What was recorded, if [`Session::start_trace`] was called.
    #[must_use]
    pub const fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// From now on bytes whose value is dead hold a pattern, and a step that reads it fails by name: slow, to find faults of plans.
    pub fn poison(&mut self, deaths: Deaths) {
        self.poison = Some(Poison::new(&self.plan, deaths));
    }

    /// Most tokens of one call, and most wanted rows.
    #[must_use]
    pub fn limits(&self) -> (u32, u32) {
        let most = |f: fn(&Program) -> u32| self.plan.programs.iter().map(f).max().unwrap_or(0);
        (most(|it| it.tokens), most(|it| it.want))
    }

    /// Runs `batch` (tokens of a row contiguous; they continue the row's history) and makes the logits of the tokens at
    /// indices `want` available. All or nothing.
    ///
    /// # Errors
    /// If the batch does not fit the plan, a weight is damaged, logits are not finite, or the step was cancelled.
    pub fn step(&mut self, batch: &[Token], want: &[u32]) -> Result<(), RuntimeError> {
        let mut poison = self.poison.take();
        let done = self.step_before(batch, want, poison.as_mut().map(|it| it as &mut dyn Onlooker));
        self.poison = poison;
        done
    }

    /// As [`Self::step`], and `f` sees the results of every step before the next step runs, and may replace them. Slow.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn step_seen(
        &mut self,
        batch: &[Token],
        want: &[u32],
        f: &mut (dyn FnMut(&StepView<'_>) + Send),
    ) -> Result<(), RuntimeError> {
        self.step_before(batch, want, Some(&mut After(f)))
    }

    fn step_before(
        &mut self,
        batch: &[Token],
        want: &[u32],
        onlooker: Option<&mut dyn Onlooker>,
    ) -> Result<(), RuntimeError> {
        let program = self.choose(batch, want)?;
        self.check_batch(batch, want)?;
        self.verify_weights()?;
        let before = thread_allocations();
        self.fill_inputs(batch, want);
        let call = Call { tokens: as_u32(batch.len()), want: as_u32(want.len()) };
        self.counters.forwards_scheduled += 1;
        let expert_bytes = self.walk(program, call, onlooker)?;
        self.accept(program, batch, call, expert_bytes)?;
        self.counters.allocations += thread_allocations() - before;
        Ok(())
    }

    /// Logits of wanted row `index` of the last step: `f32[vocab]`.
    ///
    /// # Panics
    /// If the last step had no such row.
    #[must_use]
    pub fn logits(&self, index: usize) -> &[f32] {
        assert!(index < self.last.want as usize, "row {index} of {} wanted", self.last.want);
        let port = self.port(PortName::Logits);
        let cols = self.plan.ports[port].cols as usize;
        self.spaces.port_f32s(self.plan.ports[port].offset + (index * cols * 4) as u64, cols)
    }

    /// The greedy choice of wanted row `index` of the last step.
    ///
    /// # Panics
    /// If the last step had no such row.
    #[must_use]
    pub fn next(&self, index: usize) -> u32 {
        assert!(index < self.last.want as usize, "row {index} of {} wanted", self.last.want);
        let port = self.port(PortName::Next);
        let id = self.spaces.port_i32s(self.plan.ports[port].offset, index + 1)[index];
        u32::try_from(id).expect("an index of a row")
    }

    /// The accepted half of a row's recurrent states.
    pub(crate) fn half(&self, row: u32) -> usize {
        self.halves[row as usize]
    }

    pub(crate) const fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    pub(crate) const fn spaces_mut(&mut self) -> &mut Spaces {
        &mut self.spaces
    }

    /// Decides how many tokens of `row` are accepted; their states were put in place.
    pub(crate) fn set_len(&mut self, row: u32, len: u32) {
        self.lens[row as usize] = len;
    }

    fn port(&self, name: PortName) -> usize {
        self.plan.ports.iter().position(|it| it.name == name).expect("a validated plan has every port")
    }

    /// The program that takes the batch: `decode` for at most one token a row, else `prefill`.
    fn choose(&self, batch: &[Token], want: &[u32]) -> Result<usize, RuntimeError> {
        let (tokens, wanted) = (as_u32(batch.len()), as_u32(want.len()));
        let is_single = batch.windows(2).all(|it| it[0].row != it[1].row);
        let fits =
            |it: &Program| tokens <= it.tokens && wanted <= it.want && (is_single || it.name != "decode");
        let fitting = (0..self.plan.programs.len()).filter(|i| fits(&self.plan.programs[*i]));
        fitting.min_by_key(|i| self.plan.programs[*i].tokens).ok_or_else(|| {
            let (most_tokens, most_want) = self.limits();
            RuntimeError::Batch(format!(
                "{tokens} tokens with {wanted} wanted rows, the plan takes {most_tokens} with {most_want}"
            ))
        })
    }

    fn check_batch(&self, batch: &[Token], want: &[u32]) -> Result<(), RuntimeError> {
        let (rows, ctx, vocab) = (self.plan.options.batch, self.plan.options.ctx, self.plan.model.vocab);
        let refuse = |message: String| Err(RuntimeError::Batch(message));
        if batch.is_empty() {
            return refuse("an empty batch".into());
        }
        for run in batch.chunk_by(|a, b| a.row == b.row) {
            let row = run[0].row;
            if row >= rows {
                return refuse(format!("row {row}, the plan has {rows}"));
            }
            if u64::from(self.len(row)) + run.len() as u64 > u64::from(ctx) {
                return refuse(format!(
                    "row {row} has {} tokens of {ctx}, {} more do not fit",
                    self.len(row),
                    run.len()
                ));
            }
            if let Some(token) = run.iter().find(|it| it.id >= vocab) {
                return refuse(format!("token {} of a vocabulary of {vocab}", token.id));
            }
        }
        let starts = || batch.chunk_by(|a, b| a.row == b.row).map(|it| it[0].row);
        if starts().enumerate().any(|(i, row)| starts().take(i).any(|it| it == row)) {
            return refuse("the tokens of a row must be contiguous".into());
        }
        if let Some(index) = want.iter().find(|it| **it as usize >= batch.len()) {
            return refuse(format!("token {index} is wanted, the batch has {}", batch.len()));
        }
        Ok(())
    }

    fn fill_inputs(&mut self, batch: &[Token], want: &[u32]) {
        let offset = |plan: &Plan, name| {
            plan.ports.iter().find(|it| it.name == name).expect("a validated plan has every port").offset
        };
        let ids = self.spaces.port_i32s_mut(offset(&self.plan, PortName::Token), batch.len());
        ids.iter_mut().zip(batch).for_each(|(to, it)| *to = as_i32(it.id));
        let rows = self.spaces.port_i32s_mut(offset(&self.plan, PortName::Row), batch.len());
        rows.iter_mut().zip(batch).for_each(|(to, it)| *to = as_i32(it.row));
        let pos = self.spaces.port_i32s_mut(offset(&self.plan, PortName::Pos), batch.len());
        let mut at = 0;
        for run in batch.chunk_by(|a, b| a.row == b.row) {
            let from = self.lens[run[0].row as usize];
            (from..).zip(&mut pos[at..at + run.len()]).for_each(|(p, to)| *to = as_i32(p));
            at += run.len();
        }
        let wanted = self.spaces.port_i32s_mut(offset(&self.plan, PortName::Want), want.len());
        wanted.iter_mut().zip(want).for_each(|(to, it)| *to = as_i32(*it));
    }

    /// All threads walk the program together; how many bytes of experts' matrices they multiplied with.
    fn walk(
        &mut self,
        program: usize,
        call: Call,
        onlooker: Option<&mut dyn Onlooker>,
    ) -> Result<u64, RuntimeError> {
        let steps = &self.plan.programs[program].steps;
        let claims = &self.claims[program];
        claims.iter().for_each(|it| it.store(0, Ordering::Relaxed));
        let exec = Exec {
            spaces: &self.spaces,
            table: &self.table,
            call,
            halves: &self.halves,
            experts: self.experts.as_ref(),
            cancel: &self.cancel,
            expert_bytes: AtomicU64::new(0),
        };
        if let Some(experts) = exec.experts {
            experts.begin();
        }
        let (tiles, allocations) = (AtomicUsize::new(0), AtomicU64::new(0));
        let bad_step = AtomicU32::new(u32::MAX);
        let onlooker = onlooker.map(Mutex::new);
        let view =
            |at: usize| StepView { exec: &exec, program: &self.plan.programs[program], number: program, at };
        let (cancel, scratch, check) = (&self.cancel, &self.scratch, self.check_finite);
        let clock = self.profile.as_ref().map(|it| it.clock(program));
        let number = self.trace.as_mut().map_or(0, Trace::begin);
        let trace = self.trace.as_ref();
        let job = |member: &mut Member<'_>| {
            let before = thread_allocations();
            let mut scratch = scratch[member.index].lock().expect("each thread has its own");
            let mut lane = trace.map(|it| it.lane(member.index));
            let mut done = 0;
            let mut at = 0;
            while let Some(step) = steps.get(at) {
                // Before the barrier: the others may have begun, and ended, before this thread is seen behind it.
                let started = clock.as_ref().map(|it| it.start(member.index));
                if step.barrier || clock.is_some() || check {
                    member.barrier();
                }
                if let Some(it) = &onlooker {
                    look(member, it, |it| it.before(&view(at)));
                }
                let (began, before) = (lane.as_ref().map(|it| it.now()), done);
                let is_stopped = cancel.load(Ordering::Relaxed) || member.is_panicked();
                if !is_stopped || step.kind.moves_experts() {
                    member.guarded(|| done += claim_tiles(&exec, step, &claims[at], scratch.f32s(), cancel));
                }
                if let (Some(lane), Some(start)) = (&mut lane, began) {
                    let is_reader = member.index == 0 && step.kind.moves_experts();
                    let end = lane.now();
                    let disk = exec.experts.filter(|_| is_reader).map(|it| it.counters().bytes);
                    lane.push(Slice {
                        call: number,
                        program: as_u32(program),
                        step: as_u32(at),
                        tiles: as_u32(done - before),
                        start,
                        end,
                        disk,
                    });
                }
                if let (Some(clock), Some(started)) = (&clock, started) {
                    member.barrier();
                    clock.stop(at, member.index, started);
                }
                if check {
                    member.barrier();
                    if member.index == 0 && !exec.is_finite(step) {
                        bad_step.fetch_min(as_u32(at), Ordering::Relaxed);
                    }
                }
                if let Some(it) = &onlooker {
                    look(member, it, |it| it.after(&view(at)));
                }
                at = next_step(&exec, steps, claims, at);
            }
            tiles.fetch_add(done, Ordering::Relaxed);
            // The caller's are counted around the whole step.
            if member.index > 0 {
                allocations.fetch_add(thread_allocations() - before, Ordering::Relaxed);
            }
        };
        let ran = self.team.run(&job);
        // However the walk ended, what it kept of experts is given back, and the wish to cancel is over with it.
        let is_cancelled = self.cancel.swap(false, Ordering::Relaxed);
        let ended = self.experts.as_ref().map_or(Ok(()), |it| it.end(is_cancelled || ran.is_err()));
        self.counters.barriers += ran?;
        self.counters.tiles += tiles.into_inner() as u64;
        self.counters.allocations += allocations.into_inner();
        let expert_bytes = exec.expert_bytes.load(Ordering::Relaxed);
        match ended {
            Ok(()) | Err(ExpertError::Cancelled) => {}
            Err(error) => return Err(error.into()),
        }
        if is_cancelled {
            return Err(RuntimeError::Cancelled);
        }
        let mut onlooker = onlooker.map(|it| it.into_inner().expect("only thread 0 looks on"));
        if let Some(error) = onlooker.as_mut().and_then(|it| it.verdict()) {
            return Err(error);
        }
        match bad_step.into_inner() {
            u32::MAX => Ok(expert_bytes),
            at => {
                let step = &self.plan.programs[program].steps[at as usize];
                let what = format!("the result of step {at} ({}, op {})", step.kind.name(), step.op);
                Err(RuntimeError::NotFinite { what })
            }
        }
    }

    /// Advances the cursors after the finite check of the logits.
    fn accept(
        &mut self,
        program: usize,
        batch: &[Token],
        call: Call,
        expert_bytes: u64,
    ) -> Result<(), RuntimeError> {
        let offset = self.plan.ports[self.port(PortName::Finite)].offset;
        let finite = self.spaces.port_i32s(offset, call.want as usize);
        if let Some(row) = finite.iter().position(|it| *it != 1) {
            return Err(RuntimeError::NotFinite { what: format!("row {row} of the logits") });
        }
        for run in batch.chunk_by(|a, b| a.row == b.row) {
            self.halves[run[0].row as usize] ^= 1;
            self.counters.state_bytes += self.recurrent_bytes;
        }
        for token in batch {
            let len = &mut self.lens[token.row as usize];
            *len += 1;
            // Positions read, and one written.
            self.counters.state_bytes += (u64::from(*len) + 1) * self.position_bytes;
        }
        self.counters.weight_bytes += self.weight_bytes[program] + expert_bytes;
        self.last = call;
        self.counters.forwards_useful += 1;
        self.counters.tokens += u64::from(call.tokens);
        if let Some(profile) = &mut self.profile {
            profile.count(program, call.tokens, call.want);
        }
        Ok(())
    }

    /// Compares the CRC of every packed weight with the plan's, once, by all threads.
    fn verify_weights(&mut self) -> Result<(), RuntimeError> {
        if self.is_verified {
            return Ok(());
        }
        let (next, bad) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let (plan, spaces) = (&self.plan, &self.spaces);
        self.team.run(&|member: &mut Member<'_>| {
            member.guarded(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(weight) = plan.weights.get(at) else { return };
                    if crc32c::crc32c(spaces.weight(as_u32(at))) != weight.crc32c {
                        bad.fetch_min(at, Ordering::Relaxed);
                    }
                }
            });
        })?;
        let at = bad.into_inner();
        if at < plan.weights.len() {
            return Err(self.loaded.damaged(at, crc32c::crc32c(self.spaces.weight(as_u32(at)))));
        }
        self.is_verified = true;
        Ok(())
    }
}

fn as_u32(n: usize) -> u32 {
    u32::try_from(n).expect("counts of a validated plan")
}

fn as_i32(n: u32) -> i32 {
    i32::try_from(n).expect("ids, rows and positions are below 2^31")
}
