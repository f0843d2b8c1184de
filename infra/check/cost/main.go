// Command cost prints the monthly costs of a cell on AWS, as in the table of infra/README.md. Its input is the prices;
// the formulas are those of docs/run/cost.md.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "cost: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	name := "../prices.json"
	if len(args) > 0 {
		name = args[0]
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	p, err := readPrices(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	_, err = io.WriteString(out, Table(p))
	return err
}

// Prices in US dollars.
type Prices struct {
	About                 string  `json:"about"`
	Region                string  `json:"region"`
	Date                  string  `json:"date"`
	ObjectPutsMillion     float64 `json:"objectPutsMillion"`
	ObjectGetsMillion     float64 `json:"objectGetsMillion"`
	ObjectGBMonth         float64 `json:"objectGBMonth"`
	FunctionCallsMillion  float64 `json:"functionCallsMillion"`
	FunctionGBSecond      float64 `json:"functionGBSecond"`
	MachineHour           float64 `json:"machineHour"`
	DiskGBMonth           float64 `json:"diskGBMonth"`
	BalancerHour          float64 `json:"balancerHour"`
	BalancerUnitHour      float64 `json:"balancerUnitHour"`
	EndpointHour          float64 `json:"endpointHour"`
	KeyMonth              float64 `json:"keyMonth"`
	SecretMonth           float64 `json:"secretMonth"`
	ZoneMonth             float64 `json:"zoneMonth"`
	AlarmMonth            float64 `json:"alarmMonth"`
	MetricMonth           float64 `json:"metricMonth"`
	LogGB                 float64 `json:"logGB"`
	FrontRequestsMillion  float64 `json:"frontRequestsMillion"`
	FrontFunctionsMillion float64 `json:"frontFunctionsMillion"`
	FrontGB               float64 `json:"frontGB"`
	QueueRequestsMillion  float64 `json:"queueRequestsMillion"`
	SchedulesMillion      float64 `json:"schedulesMillion"`
	BetweenZonesGB        float64 `json:"betweenZonesGB"`
}

// readPrices reads the prices. It refuses input that lacks a price, or has one that is not used.
func readPrices(r io.Reader) (Prices, error) {
	var p Prices
	decoder := json.NewDecoder(r)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return p, err
	}
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			return p, fmt.Errorf("'%s' is missing", v.Type().Field(i).Tag.Get("json"))
		}
	}
	return p, nil
}

const (
	month    = 2_592_000 // seconds, as in docs/run/cost.md
	hours    = 730       // per month, as machines are billed
	million  = 1e6
	gigabyte = 1e9
)

// The size of a cell, as infra/aws makes it by default.
const (
	logMachines, watchers = 3, 2
	logDisks              = 3 * 20.0   // GB
	systemDisks           = 3*8 + 2*10 // GB
	endpoints             = 6
	functionGB            = 1.0
)

// Load describes what clients do.
type Load struct {
	Requests   float64 // per month
	Writes     float64 // share of the requests
	Object     float64 // bytes of an object
	Objects    float64
	Answer     float64 // bytes, on average
	Billed     float64 // seconds of a function per request
	ColdStarts float64 // share of requests that find no warm function
	Cold       float64 // additional seconds of a function for those
	Readers    float64 // processes that read the log: warm functions, and the watchers
}

// usual returns a usual load with a number of requests and of readers. The seconds come from test/serverless, and leave
// some room.
func usual(requests, readers float64) Load {
	return Load{
		Requests: requests, Writes: 0.1, Object: 1600, Objects: 10_000, Answer: 4000,
		Billed: 0.008, ColdStarts: 0.002, Cold: 0.5, Readers: readers,
	}
}

// Bucket has the numbers of requests to the bucket per second.
type Bucket struct{ Puts, Gets float64 }

// bucketOf computes 'Cost' of docs/run/cost.md, with the same letters.
func bucketOf(l Load) Bucket {
	const (
		spill         = 256 << 10
		output        = 8 << 20
		compressed    = 1.0 / 6
		amplification = 4.0
		retained      = 600.0 // seconds that events stay in the log
		missed        = 0.2   // share of lookups that no cache answers
	)
	writes := l.Requests * l.Writes / month
	c := min(1, writes)
	s := min(c, writes*l.Object*compressed/spill)
	k := s / 8
	m := s*spill*amplification/output + s/8
	i := min(writes/1000+writes*l.Object/(1<<20), 1)
	forgotten := math.Exp(-retained * writes / max(1, l.Objects))
	u := 2 * writes * forgotten * missed // once in the function that serves the write, and once in the projector
	cold := l.Requests * l.ColdStarts / month * 4
	return Bucket{Puts: c + 2*s + k + m, Gets: l.Readers*i + u + cold}
}

// Line is one part of the bill.
type Line struct {
	Part   string
	Dollar func(Prices, Load) float64
}

// Lines are all parts of the bill.
var Lines = []Line{
	{"log: three machines and their disks", func(p Prices, l Load) float64 {
		writes := l.Requests * l.Writes
		return logMachines*hours*p.MachineHour + (logDisks+3*8)*p.DiskGBMonth + writes*l.Object*(2+l.Readers)/gigabyte*p.BetweenZonesGB
	}},
	{"watchers: two machines and a load balancer", func(p Prices, l Load) float64 {
		return watchers*hours*p.MachineHour + (systemDisks-3*8)*p.DiskGBMonth + hours*(p.BalancerHour+p.BalancerUnitHour)
	}},
	{"endpoints of AWS services", func(p Prices, _ Load) float64 { return endpoints * hours * p.EndpointHour }},
	{"function `api`", func(p Prices, l Load) float64 {
		seconds := l.Requests * (l.Billed + l.ColdStarts*l.Cold)
		return l.Requests/million*p.FunctionCallsMillion + seconds*functionGB*p.FunctionGBSecond
	}},
	{"jobs: schedules, the doorbell, calls", func(p Prices, l Load) float64 {
		calls := month/60.0 + month/300.0 + month/3600.0
		rings := min(l.Requests*l.Writes, watchers*month/15.0)
		// five pollers, each of which waits 20 s; a message is sent, received and deleted
		polls := 5*month/20.0 + 3*rings
		return calls/million*(p.FunctionCallsMillion+p.SchedulesMillion) + rings/million*p.FunctionCallsMillion +
			(calls+rings)*0.2*functionGB*p.FunctionGBSecond + polls/million*p.QueueRequestsMillion
	}},
	{"bucket: requests", func(p Prices, l Load) float64 {
		b := bucketOf(l)
		return month / million * (b.Puts*p.ObjectPutsMillion + b.Gets*p.ObjectGetsMillion)
	}},
	{"bucket: what it holds, and a day of old roots", func(p Prices, l Load) float64 {
		commits := min(1, l.Requests*l.Writes/month)
		return (2*l.Objects*l.Object/6 + commits*86_400*150_000) / gigabyte * p.ObjectGBMonth
	}},
	{"CloudFront: requests and traffic", func(p Prices, l Load) float64 {
		return l.Requests/million*(p.FrontRequestsMillion+p.FrontFunctionsMillion) + l.Requests*l.Answer/gigabyte*p.FrontGB
	}},
	{"logs, metrics and alarms", func(p Prices, l Load) float64 {
		return l.Requests*300/gigabyte*p.LogGB + 4*p.MetricMonth + 10*p.AlarmMonth
	}},
	{"key, secret and zone", func(p Prices, _ Load) float64 { return p.KeyMonth + p.SecretMonth + p.ZoneMonth }},
}

// Table returns the table of infra/README.md.
func Table(p Prices) string {
	loads := []Load{{Objects: 10_000, Object: 1600}, usual(1e6, 3), usual(100e6, 6)}
	var out strings.Builder
	fmt.Fprintf(&out, "| $ a month, %s, prices of %s | idle | 1 M requests | 100 M requests |\n|---|--:|--:|--:|\n", p.Region, p.Date)
	total := make([]float64, len(loads))
	for _, line := range Lines {
		fmt.Fprintf(&out, "| %s |", line.Part)
		for i, l := range loads {
			dollar := line.Dollar(p, l)
			total[i] += dollar
			fmt.Fprintf(&out, " %.2f |", dollar)
		}
		out.WriteString("\n")
	}
	out.WriteString("| **together** |")
	for _, dollar := range total {
		fmt.Fprintf(&out, " **%.0f** |", dollar)
	}
	out.WriteString("\n")
	return out.String()
}
