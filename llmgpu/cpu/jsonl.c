/* Extracting the texts of JSON Lines: the value of one field of the object in each line.
 * Lines are read strictly (RFC 8259). A line that another reader may read differently, or refuse,
 * is left to the caller. These are lines that are not an object, that lack the field or have it
 * twice, or in which its value is neither a string nor null; and lines with lone surrogates,
 * invalid UTF-8, escapes in the field's name, deep nesting or long numbers.
 */
#include "engine.h"

#define MOST_DEPTH 64
#define LONGEST_NUMBER 256 /* the most bytes of a number */

/* The name of a field, such as "a.b", which may also be field b of the object in field a. Its
 * parts, one or more, end at the positions `ends` in the whole name. A period follows each part
 * but the last. */
typedef struct {
    const uint8_t *whole;
    const int64_t *ends;
    int64_t parts, length;
} Field;

/* The bytes between the quotes of a string. start: NULL if there is no string. length: -1 if there
 * is null in place of a string. */
typedef struct {
    const uint8_t *start;
    int64_t length;
    int is_escaped;
} String;

/* A line that is being read. at: the next byte. seen: the bytes of all strings, or-ed, whose top
   bits show whether a string is not ASCII.
 * whole, within: the text, found by the field's whole name and by the name's parts. */
typedef struct {
    const uint8_t *at;
    const Field *field;
    uint64_t seen;
    String whole, within;
} Line;

/* The character for the letter of an escape such as \n. */
static const uint8_t escaped[256] = {
    ['"'] = '"', ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
    ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t',
};

static int is_hex(uint8_t byte)
{
    return (uint8_t)(byte - '0') < 10 || (uint8_t)((byte | 32) - 'a') < 6;
}

/* Read a string from behind its first quote to behind its last quote; return 0 if it is invalid. */
static int read_string(Line *line, String *string)
{
    const uint8_t *p = line->at;

    string->start = p;
    string->is_escaped = 0;
    for (;;) {
        uint64_t bytes = load64(p);
        uint64_t quotes = bytes ^ ONES * '"', escapes = bytes ^ ONES * '\\';
        uint64_t found = (((quotes - ONES) & ~quotes) | ((escapes - ONES) & ~escapes) |
                          ((bytes - ONES * ' ') & ~bytes)) & TOPS;
        line->seen |= bytes;
        if (!found) {
            p += 8;
            continue;
        }
        p += bytes_before(found);
        if (*p == '"')
            break;
        if (*p != '\\')
            return 0; /* a control character, such as the end of the line */
        string->is_escaped = 1;
        if (p[1] == 'u') {
            for (int k = 2; k < 6; k++)
                if (!is_hex(p[k]))
                    return 0;
            p += 6;
        } else if (escaped[p[1]]) {
            p += 2;
        } else {
            return 0;
        }
    }
    string->length = p - string->start;
    line->at = p + 1;
    return 1;
}

static inline void skip_space(Line *line)
{
    while (*line->at == ' ' || *line->at == '\t' || *line->at == '\r')
        line->at++;
}

static const uint8_t *skip_digits(const uint8_t *p)
{
    while ((uint8_t)(*p - '0') < 10)
        p++;
    return p;
}

static int read_number(Line *line)
{
    const uint8_t *p = line->at + (*line->at == '-'), *digits = p;

    p = *p == '0' ? p + 1 : skip_digits(p);
    int is_number = p > digits;
    if (*p == '.') {
        digits = p + 1;
        p = skip_digits(digits);
        is_number &= p > digits;
    }
    if ((*p | 32) == 'e') {
        digits = p + 1;
        digits += *digits == '+' || *digits == '-';
        p = skip_digits(digits);
        is_number &= p > digits;
    }
    if (!is_number || p - line->at > LONGEST_NUMBER)
        return 0;
    line->at = p;
    return 1;
}

static int read_word(Line *line, const char *word)
{
    size_t length = strlen(word);

    if (strncmp((const char *)line->at, word, length) != 0)
        return 0;
    line->at += length;
    return 1;
}

static int is_name(const String *name, const uint8_t *expected, int64_t length)
{
    return name->length == length && memcmp(name->start, expected, (size_t)length) == 0;
}

static int read_value(Line *line, int depth);

/* Read the value of a member whose name is part number `part` of the field's name. */
static int read_part(Line *line, int64_t part, String *text, int depth);

/* Read an object from behind its brace. part: the number of the part of the field's name that a
 * member may have as its name; -1 if the field can't be in this object. */
static int read_object(Line *line, int64_t part, int depth)
{
    const Field *field = line->field;
    int is_found = 0;

    skip_space(line);
    if (*line->at == '}') {
        line->at++;
        return 1;
    }
    for (;;) {
        String name;
        skip_space(line);
        if (*line->at++ != '"' || !read_string(line, &name))
            return 0;
        skip_space(line);
        if (*line->at++ != ':')
            return 0;
        skip_space(line);
        int done;
        if (part < 0) {
            done = read_value(line, depth);
        } else {
            int64_t begin = part ? field->ends[part - 1] + 1 : 0;
            if (name.is_escaped)
                return 0;
            if (part == 0 && field->parts > 1 && is_name(&name, field->whole, field->length)) {
                done = !line->whole.start && read_part(line, field->parts - 1, &line->whole, depth);
            } else if (is_name(&name, field->whole + begin, field->ends[part] - begin)) {
                done = !is_found && read_part(line, part, &line->within, depth);
                is_found = 1;
            } else {
                done = read_value(line, depth);
            }
        }
        if (!done)
            return 0;
        skip_space(line);
        if (*line->at == '}') {
            line->at++;
            return 1;
        }
        if (*line->at++ != ',')
            return 0;
    }
}

static int read_part(Line *line, int64_t part, String *text, int depth)
{
    if (part + 1 == line->field->parts && *line->at == 'n') {
        *text = (String){line->at, -1, 0};
        return read_word(line, "null");
    }
    if (part + 1 == line->field->parts)
        return *line->at++ == '"' && read_string(line, text);
    return depth < MOST_DEPTH && *line->at++ == '{' && read_object(line, part + 1, depth + 1);
}

static int read_array(Line *line, int depth)
{
    skip_space(line);
    if (*line->at == ']') {
        line->at++;
        return 1;
    }
    for (;;) {
        skip_space(line);
        if (!read_value(line, depth))
            return 0;
        skip_space(line);
        if (*line->at == ']') {
            line->at++;
            return 1;
        }
        if (*line->at++ != ',')
            return 0;
    }
}

static int read_value(Line *line, int depth)
{
    String string;

    switch (*line->at) {
    case '"':
        line->at++;
        return read_string(line, &string);
    case '{':
        line->at++;
        return depth < MOST_DEPTH && read_object(line, -1, depth + 1);
    case '[':
        line->at++;
        return depth < MOST_DEPTH && read_array(line, depth + 1);
    case 't':
        return read_word(line, "true");
    case 'f':
        return read_word(line, "false");
    case 'n':
        return read_word(line, "null");
    default:
        return read_number(line);
    }
}

static uint32_t hex_value(const uint8_t *p)
{
    uint32_t value = 0;

    for (int k = 0; k < 4; k++)
        value = value << 4 | (p[k] <= '9' ? p[k] - '0' : (p[k] | 32) - 'a' + 10);
    return value;
}

static uint8_t *put_character(uint8_t *out, uint32_t point)
{
    if (point < 0x80) {
        *out++ = (uint8_t)point;
    } else if (point < 0x800) {
        *out++ = (uint8_t)(0xC0 | point >> 6);
        *out++ = (uint8_t)(0x80 | (point & 63));
    } else {
        if (point < 0x10000) {
            *out++ = (uint8_t)(0xE0 | point >> 12);
        } else {
            *out++ = (uint8_t)(0xF0 | point >> 18);
            *out++ = (uint8_t)(0x80 | (point >> 12 & 63));
        }
        *out++ = (uint8_t)(0x80 | (point >> 6 & 63));
        *out++ = (uint8_t)(0x80 | (point & 63));
    }
    return out;
}

/* Write the character of an escape, from behind its \u on; return the end of the escape in the
 * string, or NULL for a lone surrogate. */
static const uint8_t *put_escaped(const uint8_t *p, const uint8_t *end, uint8_t **out)
{
    uint32_t point = hex_value(p);

    p += 4;
    if (point >= 0xD800 && point < 0xE000) {
        if (point >= 0xDC00 || end - p < 6 || p[0] != '\\' || p[1] != 'u')
            return NULL;
        uint32_t low = hex_value(p + 2);
        if (low < 0xDC00 || low >= 0xE000)
            return NULL;
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
        p += 6;
    }
    *out = put_character(*out, point);
    return p;
}

/* Write a string with its escapes replaced; may overwrite 8 bytes after it. Return its end in
 * `out`, or NULL for a lone surrogate. */
static uint8_t *unescape(const String *string, uint8_t *out)
{
    const uint8_t *p = string->start, *end = p + string->length;

    if (!string->is_escaped) {
        memcpy(out, p, (size_t)(end - p));
        return out + (end - p);
    }
    while (p < end) {
        uint64_t bytes = load64(p), escapes = bytes ^ ONES * '\\';
        uint64_t found = (escapes - ONES) & ~escapes & TOPS;
        memcpy(out, p, sizeof bytes);
        int64_t plain = found ? bytes_before(found) : 8;
        if (plain >= end - p)
            return out + (end - p);
        p += plain;
        out += plain;
        if (!found)
            continue;
        p += 2;
        if (p[-1] != 'u')
            *out++ = escaped[p[-1]];
        else if (!(p = put_escaped(p, end, &out)))
            return NULL;
    }
    return out;
}

/* Write the text of a line that ends at `end`, where there is a newline; return the text's end, or
 * NULL if the line is left to the caller. is_null: set to whether the text is null. */
static uint8_t *line_text(const uint8_t *start, const uint8_t *end, const Field *field, uint8_t *out,
                          int *is_null)
{
    Line line = {.at = start, .field = field};

    skip_space(&line);
    if (*line.at++ != '{' || !read_object(&line, 0, 1))
        return NULL;
    skip_space(&line);
    const String *text = line.whole.start ? &line.whole : &line.within;
    if (line.at != end || !text->start)
        return NULL;
    if ((line.seen & TOPS) && llmgpu_valid_utf8(start, end - start) != end - start)
        return NULL;
    *is_null = text->length < 0;
    return *is_null ? out : unescape(text, out);
}

static int is_blank(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == ' ' || (*p >= '\t' && *p <= '\r')))
        p++;
    return p == end;
}

/* Write the texts of lines end to end, up to the first line that is left to the caller or is not
 * complete. Return the number of texts, without blank lines and lines whose text is null.
 *
 * data: `length` bytes, then a newline and padding. is_last: whether the last line may lack its
 *     newline.
 * longest: the most bytes of a line, its newline included; a longer line is left to the caller.
 * whole, whole_length, ends, parts: see `Field`.
 * text: has room for `length` bytes and 8 more. starts: int64_t, set to the positions in `text` at
 *     which texts start; has room for a number for each 8 bytes, and one more.
 * done: int64_t (4,), set to the numbers of bytes of data, lines, bytes of text, and null texts. */
API int64_t llmgpu_jsonl_texts(const uint8_t *data, int64_t length, int is_last, int64_t longest,
                               const uint8_t *whole, int64_t whole_length, const int64_t *ends,
                               int64_t parts, uint8_t *text, int64_t *starts, int64_t *done)
{
    Field field = {whole, ends, parts, whole_length};
    const uint8_t *p = data, *stop = data + length;
    uint8_t *out = text;
    int64_t count = 0, lines = 0, nulls = 0;

    while (p < stop) {
        const uint8_t *end = memchr(p, '\n', (size_t)(stop - p));
        const uint8_t *next = end ? end + 1 : stop;
        if ((!end && !is_last) || next - p > longest)
            break;
        if (!is_blank(p, next)) {
            int is_null;
            uint8_t *after = line_text(p, end ? end : stop, &field, out, &is_null);
            if (!after)
                break;
            if (is_null)
                nulls++;
            else
                starts[count++] = out - text;
            out = after;
        }
        lines++;
        p = next;
    }
    done[0] = p - data;
    done[1] = lines;
    done[2] = out - text;
    done[3] = nulls;
    return count;
}
