package falcon

import "sort"

// Occupancy configures how the level of a receive pool is averaged and quantised for
// acknowledgements (Falcon §10.2).
type Occupancy struct {
	Alpha  float64  // weight of the newest value, above 0 to 1; 1 is the instantaneous level
	Levels []uint32 // 31 rising thresholds, in contexts or cells; empty: 32 equal parts of the pool
}

// OccupancyLevels is the number of thresholds: one less than the number of values of a 5-bit level.
const OccupancyLevels = 31

func (o *Occupancy) check(what string) error {
	switch {
	case !(o.Alpha > 0 && o.Alpha <= 1):
		return configError(what+".Alpha", o.Alpha, "use above 0 to 1")
	case len(o.Levels) != 0 && len(o.Levels) != OccupancyLevels:
		return configError(what+".Levels", o.Levels, "use 31 thresholds or none")
	}
	for i := 1; i < len(o.Levels); i++ {
		if o.Levels[i] < o.Levels[i-1] {
			return configError(what+".Levels", o.Levels, "use rising thresholds")
		}
	}
	return nil
}

// poolLevel is the exponential average of a pool's occupancy.
type poolLevel struct {
	ema    float64
	alpha  float64
	levels [OccupancyLevels]float64
}

func newPoolLevel(o *Occupancy, size int) poolLevel {
	p := poolLevel{alpha: o.Alpha}
	for i := range p.levels {
		p.levels[i] = float64(size) * float64(i+1) / (OccupancyLevels + 1)
		if len(o.Levels) != 0 {
			p.levels[i] = float64(o.Levels[i])
		}
	}
	return p
}

// update adds a new occupancy to the average.
func (p *poolLevel) update(inUse int) { p.ema += p.alpha * (float64(inUse) - p.ema) }

// quantised returns the number of thresholds reached. Its steps are half-open, where those of §10.2
// overlap.
func (p *poolLevel) quantised() uint8 {
	if p.ema < p.levels[0] {
		return 0
	}
	return uint8(sort.Search(OccupancyLevels, func(i int) bool { return p.levels[i] > p.ema }))
}
