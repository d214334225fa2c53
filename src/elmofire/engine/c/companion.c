/* A thread that waits here for half of the work. One sentence is a few calls of a tenth of a millisecond each: handing one over
   by way of the interpreter, whose lock both threads want, takes as long as the call. */

#define _GNU_SOURCE
#include "kernels.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum { NOTHING, CLAIMED, GIVEN, TAKEN, DONE, END }; /* the state of what is handed over */

/* How long the companion looks for the next call before it sleeps: longer than the way between two calls of one sentence. */
#define AWAKE_NANOSECONDS 1000000
#define LOOKS 64 /* between two looks at the clock, or before another thread may run */

typedef struct {
    int state, sleeps; /* atomic, both */
    pthread_t maker;
    int64_t kernel;
    const void *work;
    pthread_mutex_t lock; /* for going to sleep, and waking */
    pthread_cond_t wake;
} companion;

static void call(int64_t kernel, const void *work)
{
    if (kernel == MULTIPLY)
        elmofire_multiply(work);
    else if (kernel == RUN)
        elmofire_run(work);
    else
        elmofire_spell(work);
}

static int state_of(companion *c) { return __atomic_load_n(&c->state, __ATOMIC_SEQ_CST); }
static void set_state(companion *c, int state) { __atomic_store_n(&c->state, state, __ATOMIC_SEQ_CST); }

/* Of several who try, one succeeds. */
static int move(companion *c, int from, int to)
{
    return __atomic_compare_exchange_n(&c->state, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void look_again(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int is_wanted(companion *c)
{
    int state = state_of(c);
    return state == GIVEN || state == END;
}

static void watch(companion *c)
{
    int64_t since = nanoseconds();
    do
        for (int look = 0; look < LOOKS; look++) {
            if (is_wanted(c))
                return;
            look_again();
        }
    while (nanoseconds() - since < AWAKE_NANOSECONDS);
}

/* Either the caller sees that this thread sleeps, or this thread sees what the caller has given: each writes before it reads. */
static void sleep_until_called(companion *c)
{
    pthread_mutex_lock(&c->lock);
    __atomic_store_n(&c->sleeps, 1, __ATOMIC_SEQ_CST);
    while (c->sleeps && !is_wanted(c))
        pthread_cond_wait(&c->wake, &c->lock);
    __atomic_store_n(&c->sleeps, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&c->lock);
}

/* A sleeper is called once, even if it takes its time: each call costs. */
static void wake(companion *c)
{
    pthread_mutex_lock(&c->lock);
    __atomic_store_n(&c->sleeps, 0, __ATOMIC_SEQ_CST);
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

/* Linux puts a thread that wakes on the processor of the one that has woken it where no other is idle, or, in a virtual machine,
   where the others are not running just then; and lets it run there first, as it has slept so long: with the caller waiting. */
static void give_way(void)
{
#ifdef SCHED_BATCH
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}); /* if it may not, it is as before */
#endif
}

int64_t elmofire_companion_bytes(void) { return sizeof(companion); }

void elmofire_companion_ready(void *memory)
{
    companion *c = memory;
    c->state = NOTHING;
    c->sleeps = 0;
    c->maker = pthread_self();
    pthread_mutex_init(&c->lock, 0);
    pthread_cond_init(&c->wake, 0);
}

void elmofire_companion_wait(void *memory)
{
    companion *c = memory;
    if (pthread_equal(c->maker, pthread_self()))
        return; /* no thread of its own, but one of those that libraries switch by hand: it would never be another's turn */
    give_way();
    while (state_of(c) != END) {
        watch(c);
        if (!is_wanted(c))
            sleep_until_called(c);
        if (move(c, GIVEN, TAKEN)) {
            call(c->kernel, c->work);
            set_state(c, DONE);
        }
    }
} /* lock and condition are left as they are: who said that this is the end may not be done with them */

void elmofire_companion_end(void *memory)
{
    set_state(memory, END);
    wake(memory);
}

void elmofire_both(void *memory, int64_t kernel, const void *first, const void *second)
{
    companion *c = memory;
    if (!move(c, NOTHING, CLAIMED)) { /* another caller has it */
        call(kernel, first);
        call(kernel, second);
        return;
    }
    c->kernel = kernel;
    c->work = second;
    set_state(c, GIVEN);
    if (__atomic_load_n(&c->sleeps, __ATOMIC_SEQ_CST))
        wake(c);
    call(kernel, first);
    if (move(c, GIVEN, CLAIMED)) { /* still there: nobody came */
        call(kernel, second);
        set_state(c, NOTHING);
        return;
    }
    for (int64_t looks = 1; state_of(c) != DONE; looks++)
        if (looks % LOOKS)
            look_again();
        else
            sched_yield(); /* it may be waiting for this processor */
    set_state(c, NOTHING);
}
