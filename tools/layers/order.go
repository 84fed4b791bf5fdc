package main

import (
	"math"
	"math/rand/v2"
	"slices"
)

// tries is from how many orders the search begins.
const tries = 40

// order finds an order of the files, the lowest first, in which few uses run upwards.
func (s *shape) order() []int {
	n := len(s.files)
	weight := make([][]int, n) // weight[f][g]: how much of g the file f uses
	for i := range weight {
		weight[i] = make([]int, n)
	}
	for _, u := range s.uses {
		weight[u.from][u.to]++
	}
	var best []int
	least := len(s.uses) + 1
	r := rand.New(rand.NewPCG(1, 2))
	for try := range tries {
		o := r.Perm(n)
		if try%2 == 0 {
			o = greedy(o, weight)
		}
		settle(o, weight)
		if c := len(s.upwards(o)); c < least {
			best, least = o, c
		}
	}
	return best
}

// greedy puts at the bottom what uses nothing of what is left, at the top what nothing uses, and
// where there is neither, at the top what uses most beyond what it is used (Eades, Lin and Smyth
// 1993).
func greedy(left []int, weight [][]int) []int {
	var bottom, top []int
	for len(left) > 0 {
		at, toTop, most := 0, true, math.MinInt
		for i, f := range left {
			uses, used := 0, 0
			for _, g := range left {
				uses, used = uses+weight[f][g], used+weight[g][f]
			}
			if uses == 0 || used == 0 {
				at, toTop = i, uses > 0
				break
			}
			if uses-used > most {
				at, most = i, uses-used
			}
		}
		if toTop {
			top = append(top, left[at])
		} else {
			bottom = append(bottom, left[at])
		}
		left = slices.Delete(left, at, at+1)
	}
	slices.Reverse(top)
	return append(bottom, top...)
}

// settle moves one file after another to where it is best, until no move is for the better.
func settle(o []int, weight [][]int) {
	for moved := true; moved; {
		moved = false
		for _, f := range slices.Clone(o) {
			at := slices.Index(o, f)
			to, gain := at, 0
			for i, c := at-1, 0; i >= 0; i-- { // below o[i]: its uses of f are then downwards, f's of it not
				c += weight[o[i]][f] - weight[f][o[i]]
				if c > gain {
					to, gain = i, c
				}
			}
			for i, c := at+1, 0; i < len(o); i++ {
				c += weight[f][o[i]] - weight[o[i]][f]
				if c > gain {
					to, gain = i, c
				}
			}
			if gain > 0 {
				o = slices.Insert(slices.Delete(o, at, at+1), to, f)
				moved = true
			}
		}
	}
}

// upwards lists the uses that run against an order.
func (s *shape) upwards(order []int) (list []use) {
	place := make([]int, len(order))
	for i, f := range order {
		place[f] = i
	}
	for _, u := range s.uses {
		if place[u.to] > place[u.from] {
			list = append(list, u)
		}
	}
	return list
}
