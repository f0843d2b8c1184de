package lists

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// WantsCSV says that a get or a list prefers comma-separated values to all other formats that are served (row 52).
func WantsCSV(r *http.Request, info *apirequest.RequestInfo) bool {
	if r.Method != http.MethodGet || info.Verb != "get" && info.Verb != "list" || info.Subresource != "" {
		return false
	}
	for _, clause := range goautoneg.ParseAccept(r.Header.Get("Accept")) {
		switch clause.Type + "/" + clause.SubType {
		case "text/csv":
			return clause.Q > 0
		case "application/json", "application/yaml", "application/cbor", "application/vnd.kubernetes.protobuf", "application/*", "*/*":
			return false
		}
	}
	return false
}

// ServeCSV asks the handler for a Table, and answers with the columns and rows of that Table.
func ServeCSV(w http.ResponseWriter, r *http.Request, h http.Handler) {
	asked := r.Clone(r.Context())
	asked.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	asked.Header.Del("Accept-Encoding")
	query := asked.URL.Query()
	query.Set("includeObject", string(metav1.IncludeNone))
	asked.URL.RawQuery = query.Encode()
	reader, table := io.Pipe()
	client := bufio.NewWriterSize(w, 32<<10)
	converted := make(chan error, 1)
	go func() { // ends with the answer
		err := errors.New("a table could not be converted")
		defer func() {
			_ = recover() // otherwise the panic would end the process
			reader.CloseWithError(err)
			converted <- err
		}()
		err = convertTable(reader, client)
	}()
	a := &csvAnswer{ResponseWriter: w, table: table}
	failed := http.ErrAbortHandler // if the handler panics
	defer func() {
		table.CloseWithError(failed)
		err := <-converted           // after serveCSV returns, nobody may write
		_, gone := client.Write(nil) // the error of an earlier write to the client
		if failed == nil && err != nil && a.code == http.StatusOK && gone == nil {
			panic(http.ErrAbortHandler) // so that the client does not take a part of the answer for the whole answer
		}
	}()
	h.ServeHTTP(a, asked)
	failed = nil
}

// csvAnswer receives the handler's answer. It sends a Table to convertTable and any other answer to the client. The
// handler cannot flush the answer, since convertTable writes to the client.
type csvAnswer struct {
	http.ResponseWriter
	table *io.PipeWriter
	code  int
}

// WriteHeader implements http.ResponseWriter.
func (a *csvAnswer) WriteHeader(code int) {
	a.code = code
	if code == http.StatusOK {
		a.Header().Set("Content-Type", "text/csv;charset=utf-8")
		a.Header().Del("Content-Length")
	}
	a.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (a *csvAnswer) Write(p []byte) (int, error) {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.code == http.StatusOK {
		return a.table.Write(p)
	}
	return a.ResponseWriter.Write(p)
}

// convertTable writes a Table in JSON as comma-separated values, row by row (RFC 4180).
func convertTable(from io.Reader, to *bufio.Writer) error {
	table, rows := json.NewDecoder(from), newCSVRows(to)
	table.UseNumber()
	if _, err := table.Token(); err != nil { // the opening brace
		return err
	}
	for table.More() {
		field, err := table.Token()
		if err != nil {
			return err
		}
		switch field {
		case "columnDefinitions":
			var columns []metav1.TableColumnDefinition
			if err := table.Decode(&columns); err != nil {
				return err
			}
			var names []string
			for _, c := range columns {
				names = append(names, c.Name)
			}
			err = rows.write(names)
		case "rows":
			err = convertRows(table, rows)
		default:
			err = table.Decode(&json.RawMessage{})
		}
		if err != nil {
			return err
		}
	}
	if _, err := table.Token(); err != nil { // the closing brace
		return err
	}
	if err := to.Flush(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, from)
	return err
}

func convertRows(table *json.Decoder, rows *csvRows) error {
	if open, err := table.Token(); err != nil || open == nil { // null has no rows
		return err
	}
	for table.More() {
		var row struct {
			Cells []any `json:"cells"`
		}
		if err := table.Decode(&row); err != nil {
			return err
		}
		cells := make([]string, len(row.Cells))
		for i, cell := range row.Cells {
			if cell != nil {
				cells[i] = fmt.Sprint(cell)
			}
		}
		if err := rows.write(cells); err != nil {
			return err
		}
	}
	_, err := table.Token() // the closing bracket
	return err
}

// csvRows writes rows that end with CRLF. encoding/csv can write CRLF too, but then it also changes line ends inside
// cells.
type csvRows struct {
	to     *bufio.Writer
	values *csv.Writer // writes to rows
	rows   bytes.Buffer
}

func newCSVRows(to *bufio.Writer) *csvRows {
	c := &csvRows{to: to}
	c.values = csv.NewWriter(&c.rows)
	return c
}

func (c *csvRows) write(cells []string) error {
	if err := c.values.Write(cells); err != nil {
		return err
	}
	c.values.Flush()
	c.rows.Truncate(c.rows.Len() - len("\n"))
	c.rows.WriteString("\r\n")
	_, err := c.rows.WriteTo(c.to)
	return err
}
