package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// MaxFunctions is the number of functions that have their own series.
const MaxFunctions = 256

const (
	maxScrapes = 4
	maxClients = 64 // connections at a time
	scrapeTime = 5 * time.Second
)

// Source provides the data of each scrape; control.Provider implements it.
type Source interface {
	NIC(ctx context.Context) (control.NIC, error)
	Functions(ctx context.Context) ([]control.Function, error)
	Counters(ctx context.Context) (control.Counters, error)
	Credits(ctx context.Context) ([]control.CreditNode, error)
}

// Server answers GET /metrics.
type Server struct {
	http *http.Server
	addr net.Addr
	done chan struct{}
}

// Serve listens on a TCP address. A client must address the server by an IP address, by localhost,
// by the machine's name, or by one of names.
func Serve(addr string, names []string, s Source) (*Server, error) {
	return serve(addr, names, &collector{s})
}

// Value is a metric without labels of a program that is no NIC.
type Value struct {
	Name, Help string // a counter's name ends in _total
	Of         func() float64
}

// ServeValues is Serve for values.
func ServeValues(addr string, values ...Value) (*Server, error) {
	var list []prometheus.Collector
	for _, v := range values {
		if strings.HasSuffix(v.Name, "_total") {
			list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: v.Name, Help: v.Help}, v.Of))
		} else {
			list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: v.Name, Help: v.Help}, v.Of))
		}
	}
	return serve(addr, nil, list...)
}

func serve(addr string, names []string, own ...prometheus.Collector) (*Server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(own...)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux, h := http.NewServeMux(), &http.Server{ReadHeaderTimeout: scrapeTime, ReadTimeout: scrapeTime, WriteTimeout: 4 * scrapeTime, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14}
	clients := control.BoundClients(h, maxClients)
	answer := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: maxScrapes, Timeout: 2 * scrapeTime,
	})
	known := control.KnownHosts(names)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if !known(r.Host) {
			http.Error(w, fmt.Sprintf("%q is not a name of this NIC: ask by address, or list the name under metrics.hosts", r.Host), http.StatusForbidden)
			return
		}
		answer.ServeHTTP(&complete{w, sync.OnceFunc(clients.Busy(r))}, r)
	})
	h.Handler = mux
	v := &Server{addr: ln.Addr(), done: make(chan struct{}), http: h}
	go func() {
		defer close(v.done)
		_ = v.http.Serve(ln) // ends by Close
	}()
	return v, nil
}

// complete notices when an answer begins to be written, which is when the whole answer is known
// (because of promhttp's Timeout). From then on only the client's reading remains, and the
// connection of a slow reader may be closed.
type complete struct {
	http.ResponseWriter
	done func()
}

func (c *complete) WriteHeader(status int) {
	c.done()
	c.ResponseWriter.WriteHeader(status)
}

func (c *complete) Write(b []byte) (int, error) {
	c.done()
	return c.ResponseWriter.Write(b)
}

// Addr returns the address it listens on.
func (v *Server) Addr() net.Addr { return v.addr }

// Close stops the server.
func (v *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := v.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, v.http.Close())
	}
	<-v.done
	return err
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	info = describe("vnic_info", "The NIC: always 1.", "nic", "host", "version")
	up   = describe("vnic_peer_up", "Whether the connection manager of a peer is reached.", "peer")

	functionState  = describe("vnic_functions", "Functions by state.", "state")
	functionLink   = describe("vnic_function_link_up", "Whether the link of a function is up.", "function")
	functionHas    = describe("vnic_function_objects", "Objects that a function has, by kind.", "function", "kind")
	functionTx     = describe("vnic_function_tx_bytes_total", "Bytes of data of SENDs and WRITEs since the function was enabled.", "function")
	functionRx     = describe("vnic_function_rx_bytes_total", "Bytes of data placed in a function's memory since it was enabled.", "function")
	functionResets = describe("vnic_function_resets_total", "Function-level resets.", "function")

	creditLimit     = describe("vnic_credit_limit", "The most credits that a node may hold; absent: no limit.", "level", "node", "counter")
	creditGuarantee = describe("vnic_credit_guarantee", "Credits set aside for a node alone.", "level", "node", "counter")
	creditInUse     = describe("vnic_credit_in_use", "Credits that a node holds.", "level", "node", "counter")
	creditRefused   = describe("vnic_credit_refusals_total", "Times a node had no credit to give.", "level", "node")
)

// collector queries the source at each scrape.
type collector struct{ source Source }

// Describe sends nothing: the counters' names are known only at a scrape.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	nic, err := c.source.NIC(ctx)
	counters, err2 := c.source.Counters(ctx)
	functions, err3 := c.source.Functions(ctx)
	credits, err4 := c.source.Credits(ctx)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		out <- prometheus.NewInvalidMetric(info, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(info, 1, nic.Name, fmt.Sprint(nic.Host), nic.Version)
	for _, p := range nic.Peers {
		gauge(up, truth(p.Up), p.Name)
	}
	for name, v := range counters {
		count(out, name, v)
	}
	collectFunctions(out, gauge, functions)
	collectCredits(out, gauge, credits)
}

// families holds the Prometheus descriptions of the counter families.
var families = func() map[*counters.Family]*prometheus.Desc {
	m := map[*counters.Family]*prometheus.Desc{}
	for i := range counters.Families {
		f := &counters.Families[i]
		m[f] = describe(f.Metric, f.Help, f.Labels...)
	}
	return m
}()

// count sends a counter named "package.counter". Counters of a family are one metric with labels.
func count(out chan<- prometheus.Metric, name string, v uint64) {
	f, labels, hidden := counters.FamilyOf(name)
	switch {
	case hidden:
		return
	case f != nil:
		out <- prometheus.MustNewConstMetric(families[f], prometheus.CounterValue, float64(v), labels...)
		return
	}
	c := counters.Of(name)
	help := cmp.Or(c.Help, "Counter "+name+" of vnic show counters.")
	source, what, _ := strings.Cut(name, ".")
	if c.Gauge {
		out <- prometheus.MustNewConstMetric(describe("vnic_"+source+"_"+what, help), prometheus.GaugeValue, float64(v))
		return
	}
	if direction, ok := strings.CutPrefix(what, "bytes_"); ok { // the unit comes last
		what = direction + "_bytes"
	}
	out <- prometheus.MustNewConstMetric(describe("vnic_"+source+"_"+what+"_total", help), prometheus.CounterValue, float64(v))
}

type showGauge func(d *prometheus.Desc, v float64, labels ...string)

func collectFunctions(out chan<- prometheus.Metric, gauge showGauge, fs []control.Function) {
	states := map[string]int{}
	var other control.Function
	counter := func(d *prometheus.Desc, v uint64, id string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), id)
	}
	show := func(f *control.Function) {
		gauge(functionLink, truth(f.LinkUp), f.ID)
		for k := range abi.NumObjects {
			gauge(functionHas, float64(*f.Has(k)), f.ID, k.Info().Key)
		}
		counter(functionTx, uint64(f.TxBytes), f.ID)
		counter(functionRx, uint64(f.RxBytes), f.ID)
		counter(functionResets, uint64(f.Resets), f.ID)
	}
	for i := range fs {
		f := &fs[i]
		states[f.State]++
		if i < MaxFunctions {
			show(f)
			continue
		}
		other.ID = "other"
		other.LinkUp = other.LinkUp || f.LinkUp
		for k := range abi.NumObjects {
			*other.Has(k) += *f.Has(k)
		}
		other.TxBytes += f.TxBytes
		other.RxBytes += f.RxBytes
		other.Resets += f.Resets
	}
	if other.ID != "" {
		show(&other)
	}
	for state, n := range states {
		gauge(functionState, float64(n), state)
	}
}

func collectCredits(out chan<- prometheus.Metric, gauge showGauge, nodes []control.CreditNode) {
	functions := 0
	for i := range nodes {
		n := &nodes[i]
		if n.Level == "connection" {
			continue // one for each connection; vnic show credits lists them
		}
		if n.Level == "function" {
			if functions++; functions > MaxFunctions {
				continue
			}
		}
		for _, part := range []struct {
			desc   *prometheus.Desc
			values map[string]uint32
		}{{creditLimit, n.Limit}, {creditGuarantee, n.Guarantee}, {creditInUse, n.InUse}} {
			for counter, v := range part.values {
				gauge(part.desc, float64(v), n.Level, n.Name, counter)
			}
		}
		out <- prometheus.MustNewConstMetric(creditRefused, prometheus.CounterValue, float64(n.Refused), n.Level, n.Name)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
