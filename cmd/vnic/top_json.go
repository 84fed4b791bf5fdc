package main

import (
	"time"

	"github.com/falcon-vnic/vnic/device/control"
)

// rates is a line of `vnic top --json`: the rates of one interval.
type rates struct {
	At        time.Time            `json:"at"`
	Seconds   float64              `json:"seconds"` // length of the interval
	NIC       string               `json:"nic"`
	Host      uint8                `json:"host"`
	Counters  map[string]float64   `json:"counters_per_second"` // those that changed
	Functions []functionRates      `json:"functions"`
	Credits   []control.CreditNode `json:"credits"`
}

type functionRates struct {
	ID     string  `json:"id"`
	State  string  `json:"state"`
	LinkUp bool    `json:"link_up"`
	TxBPS  float64 `json:"tx_bits_per_second"`
	RxBPS  float64 `json:"rx_bits_per_second"`
	QPs    int     `json:"qps"`
	Fault  string  `json:"fault,omitempty"`
}

// measure returns the rates between two samples.
func measure(was, is *sample) rates {
	seconds := max(is.at.Sub(was.at).Seconds(), 1e-3)
	r := rates{At: is.at, Seconds: seconds, NIC: is.nic.Name, Host: is.nic.Host, Counters: map[string]float64{}, Functions: []functionRates{}, Credits: is.credits}
	for name, n := range is.counters {
		if n > was.counters[name] {
			r.Counters[name] = float64(n-was.counters[name]) / seconds
		}
	}
	earlier := map[string]control.Function{}
	for _, f := range was.functions {
		earlier[f.ID] = f
	}
	for _, f := range is.functions {
		e := earlier[f.ID]
		r.Functions = append(r.Functions, functionRates{
			ID: f.ID, State: f.State, LinkUp: f.LinkUp, QPs: f.QPs, Fault: f.Fault,
			TxBPS: 8 * float64(f.TxBytes-min(e.TxBytes, f.TxBytes)) / seconds,
			RxBPS: 8 * float64(f.RxBytes-min(e.RxBytes, f.RxBytes)) / seconds,
		})
	}
	return r
}
