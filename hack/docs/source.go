// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// source is the parsed code.
type source struct {
	positions *token.FileSet
	files     []*ast.File
}

// readSource parses all Go files below the folders, except tests and generated files.
func readSource(folders ...string) (*source, error) {
	s := &source{positions: token.NewFileSet()}
	for _, folder := range folders {
		if err := s.addFolder(folder); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *source) addFolder(folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "generated":
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		return s.add(path, nil)
	})
}

func (s *source) add(path string, content any) error {
	file, err := parser.ParseFile(s.positions, path, content, parser.ParseComments|parser.SkipObjectResolution)
	if err == nil && !ast.IsGenerated(file) {
		s.files = append(s.files, file)
	}
	return err
}

// errorAt returns an error with its position in the code.
func (s *source) errorAt(node ast.Node, format string, args ...any) error {
	return fmt.Errorf("%s: %s", s.positions.Position(node.Pos()), fmt.Sprintf(format, args...))
}

// text returns the value of a string literal or of a concatenation of literals.
func text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(e.Value)
		return value, err == nil
	case *ast.BinaryExpr:
		left, ok := text(e.X)
		right, also := text(e.Y)
		return left + right, ok && also && e.Op == token.ADD
	}
	return "", false
}

// cell escapes a text for a cell of a table.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}
