// Command cost prints the monthly costs of cells on AWS, as in the table of infra/README.md. Its input is the prices;
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
	AddressHour           float64 `json:"addressHour"`
	InternetGB            float64 `json:"internetGB"`
}

// readPrices reads the prices. It refuses input that lacks a price, or has a price that is not used.
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

// Layout is a way to deploy a cell.
type Layout struct {
	Name      string
	Functions bool // 'api' and jobs are functions behind CloudFront. Otherwise one process with a public address does all
	Servers   float64
	Watchers  float64
	DiskGB    float64 // of a server of the log, besides 8 GB for its system
	Endpoints float64 // of AWS services, in a zone
}

// Layouts are the layouts of infra/README.md, as infra/aws-small and infra/aws make them.
var Layouts = []Layout{
	{Name: "one machine", Servers: 1, DiskGB: 10},
	{Name: "functions, one log server", Functions: true, Servers: 1, Watchers: 1, DiskGB: 20, Endpoints: 3},
	{Name: "functions, three zones", Functions: true, Servers: 3, Watchers: 2, DiskGB: 20, Endpoints: 3},
}

const (
	functionGB      = 1.0
	serverSystemGB  = 8.0
	watcherSystemGB = 10.0
)

// Load describes the requests of clients.
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

// load returns a usual load with this number of requests and of warm functions. The seconds of functions are those that
// test/serverless measures, plus a margin.
func (l Layout) load(requests, functions float64) Load {
	load := Load{Requests: requests, Writes: 0.1, Object: 1600, Objects: 10_000, Answer: 4000}
	if l.Functions && requests > 0 {
		load.Billed, load.ColdStarts, load.Cold, load.Readers = 0.008, 0.002, 0.5, functions+l.Watchers
	}
	return load
}

// Bucket has the numbers of requests to the bucket per second.
type Bucket struct{ Puts, Gets float64 }

// bucketOf computes the formulas of 'Cost' in docs/run/cost.md, and uses the same letters.
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
	Dollar func(Prices, Layout, Load) float64
}

// ofFunctions is a part that only layouts with functions have.
func ofFunctions(dollar func(Prices, Layout, Load) float64) func(Prices, Layout, Load) float64 {
	return func(p Prices, y Layout, l Load) float64 {
		if !y.Functions {
			return 0
		}
		return dollar(p, y, l)
	}
}

// Lines are all parts of the bill.
var Lines = []Line{
	{"machines", func(p Prices, y Layout, _ Load) float64 { return (y.Servers + y.Watchers) * hours * p.MachineHour }},
	{"disks", func(p Prices, y Layout, _ Load) float64 {
		return (y.Servers*(y.DiskGB+serverSystemGB) + y.Watchers*watcherSystemGB) * p.DiskGBMonth
	}},
	{"load balancer, or public address", func(p Prices, y Layout, _ Load) float64 {
		if !y.Functions {
			return hours * p.AddressHour
		}
		return hours * (p.BalancerHour + p.BalancerUnitHour)
	}},
	{"endpoints of AWS services", func(p Prices, y Layout, _ Load) float64 { return y.Endpoints * y.Servers * hours * p.EndpointHour }},
	{"function `api`", ofFunctions(func(p Prices, _ Layout, l Load) float64 {
		seconds := l.Requests * (l.Billed + l.ColdStarts*l.Cold)
		return l.Requests/million*p.FunctionCallsMillion + seconds*functionGB*p.FunctionGBSecond
	})},
	{"jobs: schedules, the doorbell, calls", ofFunctions(func(p Prices, y Layout, l Load) float64 {
		calls := month/60.0 + month/300.0 + month/3600.0
		rings := min(l.Requests*l.Writes, y.Watchers*month/15.0)
		// five pollers, each of which waits 20 s; a message is sent, received and deleted
		polls := 5*month/20.0 + 3*rings
		return calls/million*(p.FunctionCallsMillion+p.SchedulesMillion) + rings/million*p.FunctionCallsMillion +
			(calls+rings)*0.2*functionGB*p.FunctionGBSecond + polls/million*p.QueueRequestsMillion
	})},
	{"bucket: requests", func(p Prices, _ Layout, l Load) float64 {
		b := bucketOf(l)
		return month / million * (b.Puts*p.ObjectPutsMillion + b.Gets*p.ObjectGetsMillion)
	}},
	{"bucket: what it holds, and a day of old roots", func(p Prices, _ Layout, l Load) float64 {
		commits := min(1, l.Requests*l.Writes/month)
		return (2*l.Objects*l.Object/6 + commits*86_400*150_000) / gigabyte * p.ObjectGBMonth
	}},
	{"traffic: of clients, CloudFront, between zones", func(p Prices, y Layout, l Load) float64 {
		if !y.Functions {
			return l.Requests * l.Answer / gigabyte * p.InternetGB
		}
		between := l.Requests * l.Writes * l.Object * (y.Servers - 1 + l.Readers)
		return l.Requests/million*(p.FrontRequestsMillion+p.FrontFunctionsMillion) + l.Requests*l.Answer/gigabyte*p.FrontGB + between/gigabyte*p.BetweenZonesGB
	}},
	// Four metrics are of projectors, two of each server and of all, six of each function that runs.
	{"logs, metrics and alarms", ofFunctions(func(p Prices, y Layout, l Load) float64 {
		metrics, alarms := 4+2*(y.Servers+1)+3*6, 7+4+2*y.Servers
		if l.Requests > 0 {
			metrics += 6
		}
		return l.Requests*300/gigabyte*p.LogGB + metrics*p.MetricMonth + alarms*p.AlarmMonth
	})},
	{"key, secret and zone", func(p Prices, y Layout, _ Load) float64 {
		if !y.Functions {
			return p.KeyMonth + p.ZoneMonth
		}
		return p.KeyMonth + p.SecretMonth + 2*p.ZoneMonth
	}},
}

// Total is the cost of a layout under a load.
func Total(p Prices, y Layout, l Load) (dollar float64) {
	for _, line := range Lines {
		dollar += line.Dollar(p, y, l)
	}
	return dollar
}

// Table returns the table of infra/README.md.
func Table(p Prices) string {
	var out strings.Builder
	cells := func(format string, dollar func(Layout, Load) float64) {
		for _, y := range Layouts {
			for _, l := range []Load{y.load(0, 0), y.load(1e6, 1), y.load(100e6, 4)} {
				fmt.Fprintf(&out, format, dollar(y, l))
			}
		}
		out.WriteString("\n")
	}
	fmt.Fprintf(&out, "| $ a month, %s, prices of %s |", p.Region, p.Date)
	for _, y := range Layouts {
		fmt.Fprintf(&out, " %s: idle | 1 M requests | 100 M |", y.Name)
	}
	fmt.Fprintf(&out, "\n|---|%s\n", strings.Repeat("--:|", 3*len(Layouts)))
	for _, line := range Lines {
		fmt.Fprintf(&out, "| %s |", line.Part)
		cells(" %.2f |", func(y Layout, l Load) float64 { return line.Dollar(p, y, l) })
	}
	out.WriteString("| **together** |")
	cells(" **%.0f** |", func(y Layout, l Load) float64 { return Total(p, y, l) })
	return out.String()
}
