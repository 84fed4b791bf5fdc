package main

import (
	"context"
	"os"
	"path/filepath"
	"sync"
)

// tryAll tries mutants in their order until n of them compiled, o.jobs at once, and tells each
// outcome to tell, one at a time.
func tryAll(ctx context.Context, o options, mutants []mutant, tell func(mutant, outcome), explained func(mutant) bool, warn func(string)) (counts, error) {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return counts{}, err
	}
	defer os.RemoveAll(scratch)
	base := &reach{root: o.root, scratch: scratch, kept: filepath.Join(o.root, "build/mutate"), limit: o.limit, warn: warn}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var (
		mu     sync.Mutex
		c      counts
		next   int
		flying int
		wg     sync.WaitGroup
	)
	// take hands out the next mutant as long as those tried and those being tried are fewer than n.
	free := sync.NewCond(&mu)
	take := func() (mutant, bool) {
		mu.Lock()
		defer mu.Unlock()
		for c.tried+flying >= o.n && flying > 0 && ctx.Err() == nil {
			free.Wait() // one of them may turn out not to compile
		}
		if c.tried+flying >= o.n || next == len(mutants) || ctx.Err() != nil {
			return mutant{}, false
		}
		flying++
		next++
		return mutants[next-1], true
	}
	done := func(m mutant, out outcome, err error) {
		mu.Lock()
		defer mu.Unlock()
		defer free.Broadcast()
		flying--
		if err != nil {
			cancel(err)
			return
		}
		if out == invalid {
			c.invalid++
			return
		}
		c.tried++
		if out.unnoticed() {
			c.survived++
			if explained(m) {
				c.explained++
			}
		}
		tell(m, out)
	}
	for range o.jobs {
		wg.Go(func() {
			for m, ok := take(); ok; m, ok = take() {
				out, err := try(ctx, o, base, m)
				done(m, out, err)
			}
		})
	}
	wg.Wait()
	return c, context.Cause(ctx)
}
