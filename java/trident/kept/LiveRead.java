package trident.kept;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.StartsWith;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Seq$;
import scala.math.BigInt;

/**
 * A read of all rows of a keyed state, which gives way to another plan where a query asks for some of its keys.
 *
 * <p>Python's workers read all rows fastest; but Spark cannot push a filter through them, as it can to the scans of the
 * plan in their place.
 */
public final class LiveRead extends Rule<LogicalPlan> {
  private static final TreeNodeTag<Other> TAG = new TreeNodeTag<>("trident.live");

  // One in so many: all rows take Spark's scans about three times as long as they take here.
  private static final int FILES_LEFT = 4;

  private final SparkSession session;

  private LiveRead(SparkSession session) {
    this.session = session;
  }

  /** The plan in the place of a frame, the key columns of both, and the bounds of the first one in each file. */
  private static final class Other {
    final LogicalPlan plan;
    final List<String> keys;
    final List<Object> lows;
    final List<Object> highs;

    Other(LogicalPlan plan, List<String> keys, List<Object> lows, List<Object> highs) {
      this.plan = plan;
      this.keys = List.copyOf(keys);
      this.lows = List.copyOf(lows);
      this.highs = List.copyOf(highs);
    }
  }

  /**
   * Numbers from 0 on, each in a Spark partition of its own.
   *
   * @param bytes how large Spark is to take the frame for, and what is made of it: else it would send that to every task
   */
  @SuppressWarnings({"unchecked", "rawtypes"})
  public static Dataset<Row> parts(SparkSession session, int count, long bytes) {
    Dataset<?> numbers = session.range(0, count, 1, count);
    RDD<InternalRow> rows = numbers.queryExecution().toRdd();
    LogicalRDD relation =
        new LogicalRDD(
            (Seq) DataTypeUtils$.MODULE$.toAttributes(numbers.schema()),
            rows,
            new UnknownPartitioning(count),
            (Seq) Seq$.MODULE$.empty(),
            false,
            Option.empty(),
            session,
            Option.apply(new Statistics(BigInt.apply(bytes), Option.empty(), Statistics.apply$default$3(), false)),
            Option.empty());
    return Dataset$.MODULE$.ofRows(session, relation);
  }

  /**
   * Lets a frame give way to another one of the same rows and columns.
   *
   * @param frame the rows as {@code mapInArrow} gives them
   * @param other its scans know filters of these key columns
   * @param lows the least value of the first key in each of the table's files, text or a whole number
   * @param highs the greatest
   */
  public static void giveWay(
      Dataset<Row> frame, Dataset<Row> other, List<String> keys, List<Object> lows, List<Object> highs) {
    if (!(frame.logicalPlan() instanceof MapInArrow)) {
      throw new IllegalStateException("not of mapInArrow: " + frame.logicalPlan().nodeName());
    }
    frame.logicalPlan().setTagValue(TAG, new Other(other.logicalPlan(), keys, lows, highs));
    install(frame.sparkSession());
  }

  private static synchronized void install(SparkSession session) {
    Seq<Rule<LogicalPlan>> rules = session.experimental().extraOptimizations();
    if (!rules.exists(rule -> rule instanceof LiveRead)) {
      session.experimental().extraOptimizations_$eq(rules.appended(new LiveRead(session)).toSeq());
    }
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    try {
      Map<LogicalPlan, Integer> found = new IdentityHashMap<>();
      count(plan, found);
      return found.isEmpty() ? plan : rewritten(plan, found);
    } catch (LinkageError unfit) { // compiled against another Spark: a frame that does not give way is right, too
      return plan;
    }
  }

  private static void count(LogicalPlan plan, Map<LogicalPlan, Integer> found) {
    Other other = otherOf(plan);
    if (other != null) {
      found.merge(other.plan, 1, Integer::sum);
    }
    for (Iterator<LogicalPlan> each = plan.children().iterator(); each.hasNext(); ) {
      count(each.next(), found);
    }
  }

  private LogicalPlan rewritten(LogicalPlan plan, Map<LogicalPlan, Integer> found) {
    Other other = otherOf(plan);
    if (other != null) {
      // Twice in a query, both would have the same columns of the scans.
      return found.get(other.plan) > 1 ? plan : replaced((Filter) plan, other);
    }
    List<LogicalPlan> children = new ArrayList<>();
    boolean changed = false;
    for (Iterator<LogicalPlan> each = plan.children().iterator(); each.hasNext(); ) {
      LogicalPlan child = each.next(), now = rewritten(child, found);
      changed |= now != child;
      children.add(now);
    }
    return changed ? (LogicalPlan) plan.withNewChildren(seq(children)) : plan;
  }

  /** The plan that is better for a filter right above a frame; null: there is none. */
  private static Other otherOf(LogicalPlan plan) {
    if (!(plan instanceof Filter) || !(((Filter) plan).child() instanceof MapInArrow)) {
      return null;
    }
    LogicalPlan frame = ((Filter) plan).child();
    Option<Other> other = frame.getTagValue(TAG);
    return other.isDefined() && isBetter(((Filter) plan).condition(), other.get()) ? other.get() : null;
  }

  /** Tells whether a condition chooses few keys, or leaves most of the table's files out. */
  private static boolean isBetter(Expression condition, Other other) {
    if (choosesKeys(condition, other.keys)) {
      return true;
    }
    int left = 0;
    for (int at = 0; at < other.lows.size(); at++) {
      left += mayHold(condition, other.keys.get(0), other.lows.get(at), other.highs.get(at)) ? 1 : 0;
    }
    return left * FILES_LEFT <= other.lows.size();
  }

  /** Tells whether a condition may hold in a file; false only where a comparison of the first key tells. */
  private static boolean mayHold(Expression condition, String key, Object low, Object high) {
    if (condition instanceof And) {
      And both = (And) condition;
      return mayHold(both.left(), key, low, high) && mayHold(both.right(), key, low, high);
    }
    boolean less = condition instanceof LessThan || condition instanceof LessThanOrEqual;
    if (!less && !(condition instanceof GreaterThan) && !(condition instanceof GreaterThanOrEqual)) {
      return true;
    }
    Expression first = ((BinaryComparison) condition).left(), second = ((BinaryComparison) condition).right();
    if (first instanceof Literal) {
      Expression swapped = first;
      first = second;
      second = swapped;
      less = !less;
    }
    if (!(first instanceof Attribute) || !((Attribute) first).name().equals(key) || !(second instanceof Literal)) {
      return true;
    }
    Object value = ((Literal) second).value(), bound = less ? low : high;
    int order;
    if (value instanceof UTF8String && bound instanceof String) {
      order = UTF8String.fromString((String) bound).binaryCompare((UTF8String) value);
    } else if (value instanceof Number && !(value instanceof Double || value instanceof Float) && bound instanceof Number) {
      order = Long.compare(((Number) bound).longValue(), ((Number) value).longValue());
    } else {
      return true;
    }
    return less ? order <= 0 : order >= 0;
  }

  /** Tells whether a condition names some keys, or their beginning, by comparisons that a scan can be told. */
  private static boolean choosesKeys(Expression condition, List<String> keys) {
    if (condition instanceof And) {
      return choosesKeys(((And) condition).left(), keys) || choosesKeys(((And) condition).right(), keys);
    }
    boolean compares =
        condition instanceof EqualTo
            || condition instanceof EqualNullSafe
            || condition instanceof In
            || condition instanceof InSet
            || condition instanceof IsNull
            || condition instanceof StartsWith;
    boolean hasKey = false;
    for (Iterator<Expression> each = condition.children().iterator(); each.hasNext(); ) {
      Expression one = each.next();
      if (one instanceof Attribute && keys.contains(((Attribute) one).name())) {
        hasKey = true;
      } else if (!one.foldable()) {
        return false;
      }
    }
    return compares && hasKey;
  }

  /** The other plan with the filter, optimized; its columns have the identities of the frame's, which parents name. */
  private LogicalPlan replaced(Filter filter, Other other) {
    Seq<Attribute> ours = filter.child().output();
    LogicalPlan plan = new Filter(filter.condition(), new Project(renamed(other.plan.output(), ours), other.plan.clone()));
    LogicalPlan optimized = session.sessionState().optimizer().execute(plan);
    // The optimizer takes the aliases of a plan's own columns away where the names are the same.
    return new Project(renamed(optimized.output(), ours), optimized);
  }

  private static Seq<NamedExpression> renamed(Seq<Attribute> theirs, Seq<Attribute> ours) {
    List<NamedExpression> columns = new ArrayList<>();
    Iterator<Attribute> each = theirs.iterator();
    for (Iterator<Attribute> one = ours.iterator(); one.hasNext(); ) {
      Attribute wanted = one.next(), column = each.next();
      columns.add(
          column.exprId().equals(wanted.exprId())
              ? column
              : new Alias(column, wanted.name(), wanted.exprId(), seq(List.of()), Option.empty(), seq(List.of())));
    }
    return seq(columns);
  }

  private static <T> Seq<T> seq(List<T> values) {
    return JavaConverters.asScalaBuffer(values).toSeq();
  }
}
