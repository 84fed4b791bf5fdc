package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func TestMain(m *testing.M) { leak.Main(m) }

type fake struct {
	functions int
	err       error
}

func (f *fake) NIC(context.Context) (control.NIC, error) {
	return control.NIC{Name: "nic1", Host: 1, Version: "v", Peers: []control.Peer{{Name: "2", Up: true}, {Name: "3"}}}, f.err
}

func (f *fake) Functions(context.Context) (list []control.Function, err error) {
	for i := range f.functions {
		list = append(list, control.Function{ID: fmt.Sprintf("h1.pf0.vf%d", i+1), State: "READY", Objects: control.Objects{QPs: 2, XRCDs: 3}, TxBytes: 10, LinkUp: true})
	}
	return list, nil
}

func (f *fake) Counters(context.Context) (control.Counters, error) {
	return control.Counters{
		"rdma.posted": 7, "falcon.conns": 3, "drop.psp_auth": 1, "falcon.drop_unknown_cid": 2,
		"rdma.bytes_tx": 11, "port.vp1.rx_bytes": 12, "port.eth0.5.tx_dropped": 13, "port.eth0_5.tx_dropped": 14, "impair.rx_lost": 15, "new.thing": 16,
		"falcon.nack_sent_invalid_cid": 17, "falcon.nacks_sent": 17, "falcon.completion_success": 18,
	}, nil
}

func (f *fake) Credits(context.Context) (list []control.CreditNode, err error) {
	list = append(list, control.CreditNode{Level: "nic", Name: "nic1", Limit: map[string]uint32{"req-pkt-tx": 64}, InUse: map[string]uint32{"req-pkt-tx": 5}, Refused: 9})
	for i := range f.functions {
		name := fmt.Sprintf("h1.pf0.vf%d", i+1)
		list = append(list,
			control.CreditNode{Level: "function", Name: name, Guarantee: map[string]uint32{"req-pkt-tx": 4}},
			control.CreditNode{Level: "connection", Name: name + "/1", InUse: map[string]uint32{"req-pkt-tx": 1}})
	}
	return list, nil
}

func scrape(t *testing.T, f *fake) (int, string) {
	t.Helper()
	return scrapeOf(t, f)
}

func scrapeOf(t *testing.T, f Source) (int, string) {
	t.Helper()
	s, err := Serve("127.0.0.1:0", nil, f)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	resp, err := http.Get("http://" + s.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestAScrapeShowsWhatTheNICCounts(t *testing.T) {
	status, text := scrape(t, &fake{functions: 2})
	if status != http.StatusOK {
		t.Fatal(status, text)
	}
	for _, want := range []string{
		`vnic_info{host="1",nic="nic1",version="v"} 1`,
		`vnic_peer_up{peer="2"} 1`, `vnic_peer_up{peer="3"} 0`,
		"# TYPE vnic_rdma_posted_total counter\nvnic_rdma_posted_total 7",
		"# TYPE vnic_falcon_conns gauge\nvnic_falcon_conns 3",
		"# HELP vnic_rdma_posted_total Work requests posted.",
		`vnic_drops_total{reason="psp_auth",stage="device"} 1`, `vnic_drops_total{reason="unknown_cid",stage="falcon"} 2`,
		"vnic_rdma_tx_bytes_total 11", `vnic_port_bytes_total{direction="rx",port="vp1"} 12`,
		`vnic_port_dropped_frames_total{direction="tx",port="eth0.5"} 13`, `vnic_port_dropped_frames_total{direction="tx",port="eth0_5"} 14`,
		`vnic_impaired_packets_total{direction="rx",effect="lost"} 15`, "vnic_new_thing_total 16",
		`vnic_falcon_nacks_total{code="invalid_cid",direction="tx"} 17`, `vnic_falcon_completions_total{code="success"} 18`,
		"# TYPE vnic_function_tx_bytes_total counter\nvnic_function_tx_bytes_total{function=\"h1.pf0.vf1\"} 10",
		`vnic_function_objects{function="h1.pf0.vf2",kind="qp"} 2`, `vnic_function_objects{function="h1.pf0.vf2",kind="xrcd"} 3`, `vnic_functions{state="READY"} 2`,
		`vnic_credit_limit{counter="req-pkt-tx",level="nic",node="nic1"} 64`,
		`vnic_credit_guarantee{counter="req-pkt-tx",level="function",node="h1.pf0.vf1"} 4`,
		`vnic_credit_refusals_total{level="nic",node="nic1"} 9`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, `level="connection"`) {
		t.Error("connections have series")
	}
}

// TestTheNumberOfSeriesIsBounded: for any number of functions, the number of series is bounded and the sums are
// complete.
func TestTheNumberOfSeriesIsBounded(t *testing.T) {
	status, text := scrape(t, &fake{functions: 5000})
	if n := strings.Count(text, "\n"); status != http.StatusOK || n > 20*MaxFunctions {
		t.Errorf("status %d, %d lines", status, n)
	}
	if n := strings.Count(text, "vnic_function_objects{"); n != int(abi.NumObjects)*(MaxFunctions+1) {
		t.Errorf("%d series", n)
	}
	if !strings.Contains(text, fmt.Sprintf("vnic_function_objects{function=\"other\",kind=\"qp\"} %d\n", 2*(5000-MaxFunctions))) {
		t.Error("the other functions are not summed")
	}
}

// TestSlowClientsDoNotKeepPrometheusOut: thousands of connections that send half a request use only a few descriptors,
// and Prometheus gets its answer.
func TestSlowClientsDoNotKeepPrometheusOut(t *testing.T) {
	s, err := Serve("127.0.0.1:0", nil, &fake{functions: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range 1000 {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\nX: "))
		defer c.Close()
	}
	resp, err := http.Get("http://" + s.Addr().String() + "/metrics")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(fds); n > 1000+maxClients+50 { // the clients' own are ours too
		t.Errorf("%d descriptors for 1000 clients", n)
	}
}

func TestFailuresAreReportedWithTheirCause(t *testing.T) {
	if status, text := scrape(t, &fake{err: errors.New("the NIC has stopped")}); status != http.StatusInternalServerError || !strings.Contains(text, "the NIC has stopped") {
		t.Error(status, text)
	}
	if _, err := Serve("203.0.113.1:1", nil, &fake{}); err == nil || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Error(err)
	}
}

// TestMetricsAreToldToNoWebPage: the NIC answers requests that name it by an address, localhost,
// the machine's name or a configured name. A request with another name that resolves to it gets
// only the remedy.
func TestMetricsAreToldToNoWebPage(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve("127.0.0.1:0", []string{"nic1.lab.example"}, &fake{functions: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for host, want := range map[string]bool{
		s.Addr().String(): true, "127.0.0.1": true, "192.0.2.1:9470": true, "[::1]:9470": true, "[fd00::1]": true,
		"localhost:9470": true, "LocalHost": true, own + ":9470": true, "nic1.lab.example:9470": true, "NIC1.lab.example.": true,
		"evil.example:9470": false, "localhost.evil.example": false, "nic1.lab.example.evil.example": false, "127.0.0.1.evil.example:80": false, "lab.example": false,
	} {
		req, err := http.NewRequest(http.MethodGet, "http://"+s.Addr().String()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		told := strings.Contains(string(b), "vnic_info")
		if told != want || !told && (resp.StatusCode != http.StatusForbidden || !strings.Contains(string(b), "metrics.hosts")) {
			t.Errorf("Host %s: %s: %.200s", host, resp.Status, b)
		}
	}
}

// some is a collector that sends what a function of this package sends.
type some func(out chan<- prometheus.Metric, gauge showGauge)

func (some) Describe(chan<- *prometheus.Desc) {}

func (f some) Collect(out chan<- prometheus.Metric) {
	f(out, func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	})
}

// shown returns the output of a collector, as "name{label=value}" and a number.
func shown(t *testing.T, collect some) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collect)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// TestFunctionsBeyondTheMostAreSummed: functions beyond those with their own series are summed,
// each counter separately. Without any there is no such series.
func TestFunctionsBeyondTheMostAreSummed(t *testing.T) {
	many := func(n int) (list []control.Function) {
		for i := range n {
			f := control.Function{ID: fmt.Sprintf("f%d", i), State: "READY", TxBytes: 1, RxBytes: 2, Resets: 3}
			for k := range abi.NumObjects {
				*f.Has(k) = int(k) + 1
			}
			list = append(list, f)
		}
		return list
	}
	for _, c := range []struct {
		functions, others int
	}{{MaxFunctions - 1, 0}, {MaxFunctions, 0}, {MaxFunctions + 1, 1}, {MaxFunctions + 3, 3}} {
		for _, link := range []int{-1, c.functions - 1, max(c.functions-2, MaxFunctions)} { // whose is up
			list := many(c.functions)
			up := 0.0
			if link >= MaxFunctions && link < c.functions {
				list[link].LinkUp, up = true, 1
			}
			all := shown(t, func(out chan<- prometheus.Metric, gauge showGauge) { collectFunctions(out, gauge, list) })
			n := float64(c.others)
			want := map[string]float64{
				"vnic_function_link_up{function=other}": up, "vnic_function_tx_bytes_total{function=other}": n,
				"vnic_function_rx_bytes_total{function=other}": 2 * n, "vnic_function_resets_total{function=other}": 3 * n,
			}
			for k := range abi.NumObjects {
				want[fmt.Sprintf("vnic_function_objects{function=other,kind=%s}", k.Info().Key)] = float64(k+1) * n
			}
			for name, v := range want {
				if got, is := all[name]; is != (c.others > 0) || got != v {
					t.Errorf("%d functions: %s %v, %v; want %v", c.functions, name, got, is, v)
				}
			}
			last := fmt.Sprintf("vnic_function_resets_total{function=f%d}", min(c.functions, MaxFunctions)-1)
			if all[last] != 3 || all["vnic_functions{state=READY}"] != float64(c.functions) {
				t.Errorf("%d functions: %s %v, %v in all", c.functions, last, all[last], all["vnic_functions{state=READY}"])
			}
			if _, is := all[fmt.Sprintf("vnic_function_resets_total{function=f%d}", MaxFunctions)]; is {
				t.Errorf("%d functions: one too many has series of its own", c.functions)
			}
		}
	}
}

// TestAsManyFunctionsAsAllowedHaveSeriesOfCredits: the maximum number of functions have their own
// series of credits, wherever they are in the list of nodes.
func TestAsManyFunctionsAsAllowedHaveSeriesOfCredits(t *testing.T) {
	node := func(level, name string) control.CreditNode {
		one := map[string]uint32{"req-pkt-tx": 1}
		return control.CreditNode{Level: level, Name: name, Limit: one, Guarantee: one, InUse: one, Refused: 2}
	}
	nodes := []control.CreditNode{node("nic", "n")}
	for i := range MaxFunctions + 2 {
		nodes = append(nodes, node("function", fmt.Sprintf("f%d", i)), node("connection", fmt.Sprintf("f%d/1", i)))
	}
	nodes = append(nodes, node("host", "h"))
	all := shown(t, func(out chan<- prometheus.Metric, gauge showGauge) { collectCredits(out, gauge, nodes) })
	for name, want := range map[string]bool{
		"level=nic,node=n": true, "level=host,node=h": true, "level=function,node=f0": true,
		fmt.Sprintf("level=function,node=f%d", MaxFunctions-1): true,
		fmt.Sprintf("level=function,node=f%d", MaxFunctions):   false,
		"level=connection,node=f0/1":                           false,
	} {
		for _, metric := range []string{"vnic_credit_limit", "vnic_credit_guarantee", "vnic_credit_in_use"} {
			if v, is := all[metric+"{counter=req-pkt-tx,"+name+"}"]; is != want || is && v != 1 {
				t.Errorf("%s of %s: %v, %v", metric, name, v, is)
			}
		}
		if v, is := all["vnic_credit_refusals_total{"+name+"}"]; is != want || is && v != 2 {
			t.Errorf("refusals of %s: %v, %v", name, v, is)
		}
	}
}
