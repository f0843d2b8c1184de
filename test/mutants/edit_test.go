package mutants

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// function is a function of the code, and its place.
type function struct {
	folder, file string // relative to the repository
	src          []byte
	decl         *ast.FuncDecl
	*token.FileSet
}

func (f *function) text(from, to token.Pos) string {
	return string(f.src[f.Position(from).Offset:f.Position(to).Offset])
}

// is says whether the code of a node is the given text.
func (f *function) is(n ast.Node, name string) bool { return f.text(n.Pos(), n.End()) == name }

// mentions says whether a node is an expression with the given name, or contains such an expression.
func (f *function) mentions(n ast.Node, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		found = found || ok && f.is(e, name)
		return !found
	})
	return found
}

// change puts text before and behind a part of a file. A change removes nothing, so all changes fit into one program.
type change struct {
	from, to       token.Pos
	before, behind string
}

// edit returns each place of a function where a mistake can be made. There must be exactly one place. on is an
// expression that is true in a process that makes the mistake.
type edit func(f *function, on string) []change

// isTrue and isFalse fix the value of the one condition that mentions a name. A condition is an operand of && or ||, or
// a whole condition of an 'if', a 'for' or a 'case'.
func isTrue(name string) edit {
	return func(f *function, on string) []change { return f.decide(name, "("+on+" || ") }
}

func isFalse(name string) edit {
	return func(f *function, on string) []change { return f.decide(name, "(!"+on+" && ") }
}

func (f *function) decide(name, before string) (changes []change) {
	conditions := f.conditions()
	for _, c := range conditions {
		// A condition with a function literal may contain other conditions.
		inner := slices.ContainsFunc(conditions, func(other ast.Expr) bool {
			return other != c && other.Pos() >= c.Pos() && other.End() <= c.End() && f.mentions(other, name)
		})
		if f.mentions(c, name) && !inner {
			changes = append(changes, change{c.Pos(), c.End(), before + "(", "))"})
		}
	}
	return changes
}

// conditions returns the operands of && and ||, the comparisons, and all other conditions of an 'if', a 'for' or a
// 'case'.
func (f *function) conditions() (found []ast.Expr) {
	var add func(e ast.Expr)
	add = func(e ast.Expr) {
		if inner, ok := e.(*ast.ParenExpr); ok {
			add(inner.X)
		} else if b, ok := e.(*ast.BinaryExpr); ok && (b.Op == token.LAND || b.Op == token.LOR) {
			add(b.X)
			add(b.Y)
		} else if e != nil && !slices.Contains(found, e) {
			found = append(found, e)
		}
	}
	ast.Inspect(f.decl.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			add(n.Cond)
		case *ast.ForStmt:
			add(n.Cond)
		case *ast.SwitchStmt:
			for _, clause := range n.Body.List {
				for _, e := range clause.(*ast.CaseClause).List {
					if n.Tag == nil {
						add(e)
					}
				}
			}
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR || n.Op.Precedence() == token.EQL.Precedence() {
				add(n)
			}
		}
		return true
	})
	return found
}

// skip leaves out the one statement that calls, counts or sets the function, variable or field with the given name.
func skip(name string) edit {
	return func(f *function, on string) (changes []change) {
		ast.Inspect(f.decl.Body, func(n ast.Node) bool {
			var of ast.Expr
			switch n := n.(type) {
			case *ast.ExprStmt:
				if call, ok := n.X.(*ast.CallExpr); ok {
					of = call.Fun
				}
			case *ast.IncDecStmt:
				of = n.X
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					of = n.Lhs[0]
				}
			}
			if of != nil && f.is(of, name) {
				changes = append(changes, change{n.Pos(), n.End(), "if !" + on + " { ", " }"})
			}
			return true
		})
		return changes
	}
}

// value sets the one variable or field of the given name to another value, where the function sets it.
func value(name, with string) edit {
	return func(f *function, on string) (changes []change) {
		ast.Inspect(f.decl.Body, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
				for i, left := range a.Lhs {
					if f.is(left, name) {
						changes = append(changes, instead(a.Rhs[i], on, with))
					}
				}
			}
			return true
		})
		return changes
	}
}

// argument replaces the n-th argument of the one call with the given name.
func argument(name string, n int, with string) edit {
	return func(f *function, on string) (changes []change) {
		ast.Inspect(f.decl.Body, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok && f.is(call.Fun, name) {
				changes = append(changes, instead(call.Args[n], on, with))
			}
			return true
		})
		return changes
	}
}

func instead(e ast.Expr, on, with string) change {
	return change{e.Pos(), e.End(), "mutated(" + on + ", ", ", " + with + ")"}
}

// begin lets the function begin with further statements.
func begin(statements string) edit {
	return func(f *function, on string) []change {
		return []change{{f.decl.Body.Lbrace + 1, f.decl.Body.Lbrace + 1, "if " + on + " { " + statements + " }; ", ""}}
	}
}

// find returns the function 'folder.name' or 'folder.Type.name', nil if there is none.
func find(t *testing.T, tree, name string) *function {
	t.Helper()
	slash := strings.LastIndex(name, "/") + 1
	dot := slash + strings.Index(name[slash:], ".")
	folder, name := name[:dot], name[dot+1:]
	files, err := filepath.Glob(filepath.Join(tree, folder, "*.go"))
	require.NoError(t, err)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		require.NoError(t, err)
		f := function{folder: folder, file: filepath.Join(folder, filepath.Base(path)), src: src, FileSet: token.NewFileSet()}
		parsed, err := parser.ParseFile(f.FileSet, path, src, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			if f.decl, _ = d.(*ast.FuncDecl); f.decl != nil && f.nameOf() == name {
				return &f
			}
		}
	}
	t.Errorf("%s has no function '%s': bring test/mutants/list_test.go up to date", folder, name)
	return nil
}

func (f *function) nameOf() string {
	if f.decl.Recv == nil {
		return f.decl.Name.Name
	}
	of, _, _ := strings.Cut(f.text(f.decl.Recv.List[0].Type.Pos(), f.decl.Recv.List[0].Type.End()), "[")
	return strings.TrimPrefix(of, "*") + "." + f.decl.Name.Name
}

// helper is a file that each package with a mistake gets.
const helper = `package %s

import "os"

var mutant = os.Getenv("LOGPLANE_MUTANT")

func mutated[T any](on bool, was, is T) T {
	if on {
		return is
	}
	return was
}
`

// overlay writes all files with mistakes. A process makes a mistake only if LOGPLANE_MUTANT names it. overlay returns
// the file that tells the compiler the places of those files, and the folders of the packages with mistakes.
func overlay(t *testing.T, tree string) (name string, folders []string) {
	t.Helper()
	type insertion struct {
		at, order int // at one place, ends come before beginnings, and the longer change is outside
		text      string
	}
	files, insertions := map[string]*function{}, map[string][]insertion{}
	for _, m := range list {
		f := find(t, tree, m.in)
		if f == nil {
			continue
		}
		changes := m.do(f, "(mutant == "+strconv.Quote(m.name)+")")
		if len(changes) != 1 {
			t.Errorf("%s has %d places for '%s': bring test/mutants/list_test.go up to date", m.in, len(changes), m.name)
			continue
		}
		c := changes[0]
		from, to := f.Position(c.from).Offset, f.Position(c.to).Offset
		files[f.file] = f
		insertions[f.file] = append(insertions[f.file],
			insertion{from, len(f.src) - (to - from), c.before}, insertion{to, to - from - len(f.src), c.behind})
	}
	scratch, replace := t.TempDir(), map[string]string{}
	write := func(file, text string) {
		at := filepath.Join(scratch, strings.ReplaceAll(file, "/", "+"))
		require.NoError(t, os.WriteFile(at, []byte(text), fs.FileMode(0o600)))
		replace[filepath.Join(tree, file)] = at
	}
	for file, f := range files {
		slices.SortStableFunc(insertions[file], func(a, b insertion) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order, b.order))
		})
		var text strings.Builder
		done := 0
		for _, i := range insertions[file] {
			text.Write(f.src[done:i.at])
			text.WriteString(i.text)
			done = i.at
		}
		text.Write(f.src[done:])
		write(file, text.String())
		parsed, err := parser.ParseFile(token.NewFileSet(), file, f.src, parser.PackageClauseOnly)
		require.NoError(t, err)
		write(filepath.Join(f.folder, "mutants_overlay.go"), fmt.Sprintf(helper, parsed.Name.Name))
		folders = append(folders, "./"+f.folder)
	}
	body, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	name = filepath.Join(scratch, "overlay.json")
	require.NoError(t, os.WriteFile(name, body, 0o600))
	slices.Sort(folders)
	return name, slices.Compact(folders)
}
